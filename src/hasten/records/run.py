"""One measured run of the user's command."""

from __future__ import annotations

from typing import Literal, get_args

from hasten.protocol import GRADIENT_PHASES, EndedBy, Phase, SandboxForm, StageName, StartMethod, TierName
from hasten.records.codec import Name, Record
from hasten.records.machine import Machine, ResourceSample
from hasten.records.ranks import Ddp, Ranks
from hasten.records.values import Interval, Where

PHASES: tuple[Phase, ...] = get_args(Phase)
COMPUTING: tuple[Phase, ...] = (*GRADIENT_PHASES, "optimizer", "zero_grad")
RARE: tuple[Phase, ...] = ("epoch_start", "validation", "checkpoint")  # not part of a regular step

STAGES: tuple[StageName, ...] = get_args(StageName)
Role = Literal["train", "validation"]
Boundary = Literal["optimizer", "backward"]

Verdict = Literal["faster", "slower", "no difference", "inconclusive", "failed"]
"""The result of any comparison of speed."""


class Step(Record, frozen=True):
    """One training step, from one optimizer step's end to the next's."""

    index: int
    start: float  # seconds on the run's clock
    seconds: float
    marked: bool  # instrumented; False: only the step boundary and the data wait were recorded
    phases: dict[Phase, float] = {}  # exclusive host seconds; phases that were not seen are left out
    device: dict[Phase, float] = {}  # device seconds of the phases that have events
    device_waited: float = 0.0  # the part of these in phases that ended with the device waiting for the host
    num_batches: int = 0  # of the training loader that gave most of them
    num_samples: int | None = None  # of all training loaders
    starts_epoch: bool = False  # workers start in it: not a regular step


class Stage(Record, frozen=True):
    """One stage of the loader's work over the measured steps, summed over workers. Exclusive seconds."""

    name: StageName
    detail: str = ""  # library or transform: "Pillow", "RandomResizedCrop", or "" for the rest
    num_calls: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    num_bytes: int = 0


class CacheTier(Record, frozen=True):
    """One tier of a loader's cache, at the end of the run."""

    name: TierName
    num_hits: int
    num_bytes: int
    budget_bytes: int
    seconds_saved: float = 0.0  # time of preparing the hits, summed over workers


class RemoteReads(Record, frozen=True):
    """What a loader's cache did with remote objects (`s3://`, `https://`), from its start to the end of the run."""

    num_hits: int  # objects read from the local disk
    num_downloads: int
    num_bytes: int  # downloaded
    num_retries: int  # requests that failed or stalled, and were made again
    num_direct: int  # objects that were not kept


class LoaderFacts(Record, frozen=True):
    """A DataLoader that the script used, and the cost of its batches."""

    name: str  # dataset class
    role: Role
    num_workers: int
    batch_size: int | None
    num_batches: int | None  # per epoch; None for an iterable dataset
    num_samples: int | None  # in the dataset
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    recreated: bool = False  # the script creates a new DataLoader, with new workers, for each epoch
    pin_memory: bool = False
    start_method: StartMethod | None = None
    in_memory: bool = False  # the dataset only indexes tensors or arrays in memory
    where: Where | None = None
    stages: tuple[Stage, ...] = ()
    num_measured_batches: int = 0  # batches that `stages` covers
    num_measured_samples: int = 0
    batch_work_seconds: tuple[float, ...] = ()  # one worker's wall seconds for each measured batch
    batch_delay: float | None = None  # mean seconds per batch in which its worker was runnable without a free core
    sample_seconds: tuple[float, ...] = ()  # wall seconds of some of the samples
    queue_ready: tuple[int, ...] = ()  # batches ready at each next()
    sampler_seconds: float | None = None  # that choosing a batch's indices takes, in the training process
    sampler_start_seconds: float | None = None  # the same, at an epoch's start
    bytes_per_batch: int | None = None  # of tensors, as returned to the training loop
    dtypes: tuple[str, ...] = ()  # of those tensors
    files: tuple[str, ...] = ()  # some of the files that were read
    file_bytes: int | None = None  # their mean size
    decoded_bytes_per_sample: float | None = None  # after decode, before transforms
    decode_speedup: Interval | None = None  # a faster decoder on the same files; see decode_library
    decode_library: str | None = None
    cache: tuple[CacheTier, ...] = ()
    num_cache_misses: int | None = None  # None: caching is off
    remote: RemoteReads | None = None  # None: no remote object was opened

    @property
    def work_seconds(self) -> float:
        """Wall seconds that one worker works on a batch."""
        return sum(s.seconds for s in self.stages) / self.num_measured_batches if self.num_measured_batches else 0.0

    @property
    def cpu_seconds(self) -> float:
        """Seconds of that on a core."""
        return (
            sum(s.cpu_seconds for s in self.stages) / self.num_measured_batches if self.num_measured_batches else 0.0
        )

    @property
    def waiting_share(self) -> float:
        """Share of that time in which it neither computes nor lacks a core: it waits for a disk, a server, a lock."""
        # A worker that is ready and has no core does not wait for anything else.
        wall = self.work_seconds - (self.batch_delay or 0.0)
        if wall <= 0:
            return 0.0
        return max(0.0, 1 - self.cpu_seconds / wall)


class OptimizerFacts(Record, frozen=True):
    """An optimizer that was used."""

    name: str
    num_parameters: int  # elements
    num_tensors: int
    fused: bool | None = None
    foreach: bool | None = None
    steps_per_step: float = 1.0


class ModelFacts(Record, frozen=True):
    """A root module that was called: one that no other module calls."""

    name: str
    num_parameters: int
    num_modules: int
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    num_convolutions: int = 0
    channels_last: bool = False  # the weights of the convolutions are channels-last
    compiled: bool = False
    data_parallel: bool = False


class CopyFacts(Record, frozen=True):
    """Host-to-device copies of the script, per step."""

    num_bytes: float
    pinned: float  # share of the bytes that came from pinned memory
    blocking: float  # share of the bytes whose copies blocked the host
    dtypes: tuple[str, ...]
    where: Where | None = None


class Facts(Record, frozen=True):
    """Facts about the script, collected once after its steps are measured."""

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
    subnormal_share: float | None = None  # share of the values in parameters, gradients and optimizer states
    num_operators: float | None = None  # dispatched operators per step
    num_calls: float | None = (
        None  # per step, from Python into PyTorch in forward, loss and backward; a whole nn.GRU is one
    )
    call_overhead: float | None = None  # seconds of such a call that computes next to nothing, backward included
    num_flops: float | None = None  # floating-point operations per step
    gather_seconds: float | None = None  # estimated time of gathering a batch's rows from data in memory at once
    num_training_processes: int = 1
    ranks_per_host: int = 1  # that share the cores
    forced_threads: bool = False  # torchrun limits each rank to one thread
    ddps: tuple[Ddp, ...] = ()
    run_delay: float | None = None  # seconds per step that the training thread was runnable without a free core
    memory_requests: float | None = None  # requests of the GPU allocator to the driver, per step
    frameworks: tuple[str, ...] = ()
    device: str = "cpu"  # where the parameters are
    where: dict[Phase, Where] = {}  # first place in the source that entered each phase
    models: tuple[ModelFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    loaders: tuple[LoaderFacts, ...] = ()
    steps_per_epoch: float | None = None
    steps_per_validation: float | None = None
    steps_per_checkpoint: float | None = None


class HotLine(Record, frozen=True):
    """A line of the user's source that was sampled, and the phase in which it ran."""

    where: Where
    phase: Phase
    seconds: float  # per step
    in_worker: bool = False


class SyncPoint(Record, frozen=True):
    """A call that waits for a tensor, or copies it to the host."""

    kind: str  # ".item()" ...
    where: Where
    calls: float  # per step
    seconds: float  # per step


class Intervention(Record, frozen=True):
    """A short run with one change, and its effect on the step time.

    `ratio` is candidate / baseline step time. It is None, with a `note`, if it could not be measured.
    """

    name: str
    ratio: Interval | None = None
    baseline_seconds: float | None = None
    candidate_seconds: float | None = None
    num_steps: int = 0
    settings: dict[str, str] = {}
    note: str = ""


class FileRead(Record, frozen=True):
    """The same files read with their pages dropped from the page cache, and again."""

    num_files: int
    num_bytes: int
    cold_seconds: float | None  # None: the file system did not drop the pages
    warm_seconds: float
    note: str = ""


class Overhead(Record, frozen=True):
    """The overhead of measuring."""

    ratio: Interval | None  # instrumented / uninstrumented step time, from alternating segments of one run
    marks_per_step: float
    seconds_per_mark: float
    hook_seconds: float = 0.0  # estimated overhead of the baseline hooks, in seconds per step
    sampler_cpu: float | None = None  # cores used by resource sampling, in hasten's own process


class Bar(Record, frozen=True):
    """One bar in one lane. Bars of a lane do not overlap."""

    lane: str  # "main", "worker 1" ..., "device"
    kind: str  # a phase in "main" and "device"; a stage of the loader's work in a worker
    start: float  # seconds since the timeline's start
    seconds: float


class Timeline(Record, frozen=True):
    """Some consecutive steps, with the work of the loader's workers at that time.

    A worker reads, decodes and transforms sample by sample; each of its bars is the time of a stage for a whole batch.
    """

    start: float  # seconds on the run's clock
    seconds: float
    step_ends: tuple[float, ...]  # seconds since the timeline's start
    bars: tuple[Bar, ...]


class Run(Record, frozen=True):
    """One measured run of the user's command, with the further runs that confirm causes."""

    version: int  # RECORD_VERSION at the time of writing
    hasten: str
    id: Name
    command: tuple[str, ...]
    directory: str
    started: float  # seconds since 1970
    ended_by: EndedBy  # "hasten": all steps were measured; "script": the script ended first
    exit_code: int | None
    machine: Machine
    facts: Facts
    steps: tuple[Step, ...]
    first_step_seconds: float | None = None  # from the process's start to the end of its first step
    hot_lines: tuple[HotLine, ...] = ()
    sync_points: tuple[SyncPoint, ...] = ()
    resources: tuple[ResourceSample, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    untried: tuple[str, ...] = ()  # interventions that apply and were not made
    file_read: FileRead | None = None
    sandbox: SandboxForm | None = None  # type of the sandbox; None: a real run without one
    overhead: Overhead | None = None
    timeline: Timeline | None = None
    ranks: Ranks | None = None  # None: it trains alone
    notes: tuple[str, ...] = ()
