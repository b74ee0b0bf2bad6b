"""One measured run of the user's command."""

from __future__ import annotations

from typing import Literal, get_args

from hasten.protocol import EndedBy, SandboxForm
from hasten.records.codec import Name, Record
from hasten.records.machine import Machine, ResourceSample
from hasten.records.timeline import Timeline

Phase = Literal[
    "data_wait",  # blocked in next(loader)
    "epoch_start",  # making the loader's iterator (worker start) and its first batch
    "copy",  # host-to-device copies made by the script
    "forward",  # root modules
    "loss",  # from the end of the root forward to the start of backward
    "backward",  # outermost backward
    "optimizer",  # optimizer step
    "zero_grad",
    "sync",  # .item(), .cpu(), .numpy(), .tolist(), float(tensor), printing a tensor
    "logging",  # print, logging, experiment trackers, progress bars
    "validation",  # everything between the first and the last event of a validation
    "checkpoint",  # saving
    "script",  # the script's own lines outside every phase above, known by sampling
]
"""The phases of a step on the host, in the order in which a step meets them.

A phase is exclusive: time in a nested phase counts for the inner one only, so the phases and `unaccounted` sum to the step.
"""
PHASES: tuple[Phase, ...] = get_args(Phase)
RARE: tuple[Phase, ...] = ("epoch_start", "validation", "checkpoint")  # no part of a regular step

StageName = Literal["read", "decode", "transform", "getitem", "collate"]
STAGES: tuple[StageName, ...] = get_args(StageName)
Role = Literal["train", "validation"]
Boundary = Literal["optimizer", "backward"]
StartMethod = Literal["fork", "spawn", "forkserver"]

Verdict = Literal["faster", "slower", "no difference", "inconclusive", "failed"]
"""Of a comparison, everywhere."""


class Where(Record, frozen=True):
    """A place in the user's source."""

    file: str
    line: int
    function: str = ""
    source: str = ""  # the line itself, stripped


class Interval(Record, frozen=True):
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float


class Step(Record, frozen=True):
    """One training step, from one optimizer step's end to the next's."""

    index: int
    start: float  # seconds on the run's clock
    seconds: float
    marked: bool  # False: time of record, the boundary and the data wait only
    phases: dict[Phase, float] = {}  # exclusive host seconds; a phase that was not seen is not there
    device: dict[Phase, float] = {}  # device seconds of the phases that have events
    device_waited: float = 0.0  # of these, in phases at whose end the device waited for the host
    num_batches: int = 0
    num_samples: int | None = None
    starts_epoch: bool = False  # workers start in it: none of the regular steps


class Stage(Record, frozen=True):
    """One stage of the loader's work over the measured steps, summed over workers. Exclusive seconds."""

    name: StageName
    detail: str = ""  # library or transform: "Pillow", "RandomResizedCrop", "" for the rest
    num_calls: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    num_bytes: int = 0


class CacheTier(Record, frozen=True):
    """One tier of a loader's cache, when the run ended."""

    name: Literal["ram", "disk", "device"]
    num_hits: int
    num_bytes: int
    budget_bytes: int
    seconds_saved: float = 0.0  # of preparing what was hit, summed over workers


class LoaderFacts(Record, frozen=True):
    """A DataLoader the script iterated, and what its batches cost to make."""

    name: str  # dataset class
    role: Role
    num_workers: int
    batch_size: int | None
    num_batches: int | None  # an epoch's; None for a stream
    num_samples: int | None  # the dataset's
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    made_anew: bool = False  # each epoch has a DataLoader of its own, with workers of its own
    pin_memory: bool = False
    start_method: StartMethod | None = None
    in_memory: bool = False  # the dataset only indexes tensors or arrays that it holds
    where: Where | None = None
    stages: tuple[Stage, ...] = ()
    num_measured_batches: int = 0  # batches that `stages` covers
    num_measured_samples: int = 0
    batch_work_seconds: tuple[float, ...] = ()  # one worker's wall seconds for each measured batch
    batch_delay: float | None = None  # mean seconds of a batch in which its worker was ready and had no core
    sample_seconds: tuple[float, ...] = ()  # a subset of samples' wall seconds
    queue_ready: tuple[int, ...] = ()  # batches ready at each next()
    bytes_per_batch: int | None = None  # of tensors, as handed to the loop
    dtypes: tuple[str, ...] = ()  # of those tensors
    files: tuple[str, ...] = ()  # a subset of the files read
    file_bytes: int | None = None  # their mean size
    decoded_bytes_per_sample: float | None = None  # after decode, before transforms
    decode_speedup: Interval | None = None  # a faster decoder on the same files; see decode_library
    decode_library: str | None = None
    cache: tuple[CacheTier, ...] = ()
    num_cache_misses: int | None = None  # None: nothing is kept


class OptimizerFacts(Record, frozen=True):
    """An optimizer that stepped."""

    name: str
    num_parameters: int  # elements
    num_tensors: int
    fused: bool | None = None
    foreach: bool | None = None
    steps_per_step: float = 1.0


class ModelFacts(Record, frozen=True):
    """A root module that was called."""

    name: str
    num_parameters: int
    num_modules: int
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    num_convolutions: int = 0
    channels_last: bool = False  # weights of the convolutions lie channels-last
    compiled: bool = False
    data_parallel: bool = False


class CopyFacts(Record, frozen=True):
    """Host-to-device copies that the script made, a step."""

    num_bytes: float
    pinned: float  # share of the bytes that came from pinned memory
    blocking: float  # share of the bytes whose copy the host waited for
    dtypes: tuple[str, ...]
    where: Where | None = None


class Facts(Record, frozen=True):
    """What the script is: read once, when its steps are measured."""

    boundary: Boundary
    num_threads: int  # torch intra-op threads of the main process
    autocast: bool = False  # a root forward ran under autocast
    copies: CopyFacts | None = None
    anomaly_detection: bool = False
    profiler: bool = False
    deterministic: bool = False
    cudnn_benchmark: bool | None = None
    num_input_shapes: int | None = None
    tf32: bool | None = None
    zero_grad_in_place: bool = False
    zero_grad_where: Where | None = None
    validation_grad: bool = False  # a validation forward recorded gradients
    validation_where: Where | None = None
    subnormal_share: float | None = None  # of the values found in parameters, gradients and optimizer states
    num_operators: float | None = None  # dispatched operators a step
    num_calls: float | None = None  # from Python into torch in forward, loss and backward; a whole nn.GRU is one
    num_flops: float | None = None  # floating point operations a step
    gather_seconds: float | None = None  # copying a batch twice: gathering its rows from held data at once
    num_training_processes: int = 1
    run_delay: float | None = None  # seconds a step that the training thread was ready and had no core
    memory_requests: float | None = None  # a step, of the allocator on the GPU to its driver
    frameworks: tuple[str, ...] = ()
    device: str = "cpu"  # where the parameters are
    where: dict[Phase, Where] = {}  # first place that each phase was entered from
    models: tuple[ModelFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    loaders: tuple[LoaderFacts, ...] = ()
    steps_per_epoch: float | None = None
    steps_per_validation: float | None = None
    steps_per_checkpoint: float | None = None


class HotLine(Record, frozen=True):
    """A line of the user's source that the sampler met, in the phase it met it."""

    where: Where
    phase: Phase
    seconds: float  # a step
    in_worker: bool = False


class SyncPoint(Record, frozen=True):
    """A call that makes the host wait for, or copy from, a tensor."""

    kind: str  # ".item()" ...
    where: Where
    calls: float  # a step
    seconds: float  # a step


class Intervention(Record, frozen=True):
    """A further short run in which one thing was different: what it did to the step time.

    `ratio` is candidate / baseline step time. None, with a `note`, when it could not be measured.
    """

    name: str
    ratio: Interval | None = None
    baseline_seconds: float | None = None
    candidate_seconds: float | None = None
    num_steps: int = 0
    settings: dict[str, str] = {}
    note: str = ""


class FileRead(Record, frozen=True):
    """The same files read with their pages dropped, and again."""

    num_files: int
    num_bytes: int
    cold_seconds: float | None  # None: the file system did not drop the pages
    warm_seconds: float
    note: str = ""


class Overhead(Record, frozen=True):
    """What measuring cost."""

    ratio: Interval | None  # marked / unmarked step time, interleaved blocks of one run
    marks_per_step: float
    seconds_per_mark: float
    record_seconds: float = 0.0  # estimated cost a step of the time-of-record hooks
    sampler_cpu: float | None = None  # cores used by the parent's resource sampling


class Run(Record, frozen=True):
    """One measured run of the user's own command, with the further runs made to confirm its causes."""

    version: int  # RECORD_VERSION when it was written
    hasten: str
    id: Name
    command: tuple[str, ...]
    directory: str
    started: float  # seconds since 1970
    ended_by: EndedBy  # "hasten": the window was full; "script": it ended by itself
    exit_code: int | None
    machine: Machine
    facts: Facts
    steps: tuple[Step, ...]
    first_step_seconds: float | None = None  # from the process's start to the end of its first step
    hot_lines: tuple[HotLine, ...] = ()
    sync_points: tuple[SyncPoint, ...] = ()
    resources: tuple[ResourceSample, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    untried: tuple[str, ...] = ()  # interventions that would have told something, and were not made
    file_read: FileRead | None = None
    sandbox: SandboxForm | None = None  # what kept the script's writes from staying; None: nothing, it was a real run
    overhead: Overhead | None = None
    timeline: Timeline | None = None
    notes: tuple[str, ...] = ()
