"""What a measured process writes once, at its end: a RawRun; and a StageLine for each batch, by the process that makes it.

Times are of `perf_counter`, in seconds. A place is the number of a line in `RawRun.places`; -1: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hasten.protocol import EndedBy, Phase, StageName, StartMethod, TierName, reader_of

STAGES = "stages-{}.jsonl"  # file of StageLines, by process id
# Names of segments; further ones are the causes that switches confirm.
WARM_UP, PLAIN, MARKED, REPLAY, DEVICE_REPLAY, JOIN = "warm-up", "plain", "marked", "replay", "device replay", "join"
INSTANT = "instant samples"
# Flags of a forward: module in training, grad mode on, output needs grad, under autocast.
TRAINING, GRAD, OUTPUT_GRAD, AUTOCAST = 1, 2, 4, 8
UNKNOWN_LENGTH = -1  # of a batch that holds no tensor

Place = tuple[str, int, str]  # file, line, function
SampledPhase = Literal[Phase, "between"]  # "between": in no phase


class Fetched(NamedTuple):
    """Detail of `next`."""

    loader: int  # its number
    num_samples: int | None  # None: no batch came
    ready: int | None  # batches that lay ready; None: there are no workers


class Forward(NamedTuple):
    """Detail of `forward`."""

    model: int
    flags: int
    num_samples: int | None  # the first dimension of its input


class Sync(NamedTuple):
    """Detail of `sync`."""

    place: int
    call: str


class ZeroGrad(NamedTuple):
    """Detail of `zero_grad`."""

    place: int
    to_none: bool


class Exchange(NamedTuple):
    """Detail of `communication`."""

    place: int  # -1: the model's own, in forward, backward or optimizer


class Copy(NamedTuple):
    """Detail of `copy`."""

    place: int
    num_bytes: int
    pinned: bool
    blocking: bool
    dtype: str


Detail = (
    Fetched | Forward | Sync | ZeroGrad | Exchange | Copy | int | None
)  # int: of `iter` and `end` the loader, of others an id
_details = {
    "next": Fetched,
    "forward": Forward,
    "sync": Sync,
    "zero_grad": ZeroGrad,
    "communication": Exchange,
    "copy": Copy,
}
_readers = {kind: reader_of(detail) for kind, detail in _details.items()}
_read_text, _read_seconds, _read_number = map(reader_of, (str, float, int | None))


class Span(NamedTuple):
    """A span of the training thread."""

    kind: str
    start: float
    end: float
    detail: Detail = None

    @staticmethod
    def from_json(value: Any) -> Span:
        """A span of a JSON list; its kind says what its detail is."""
        kind, start, end, detail = value
        read = _readers.get(kind, _read_number)
        return Span(_read_text(kind), _read_seconds(start), _read_seconds(end), read(detail))


class DeviceSpan(NamedTuple):
    """An outermost span on the device."""

    kind: Phase
    start: float  # on the host
    seconds: float  # on the device; negative: another kind's, that are part of a span of this one
    waited: bool  # at its end the device waited for the host: these seconds are the host's


class LineSeconds(NamedTuple):
    """What the sampler found of a line in a phase."""

    place: Place | None  # None: no line of the user's
    phase: SampledPhase
    seconds: float


class StageSeconds(NamedTuple):
    """What a stage of making a batch took."""

    name: StageName
    detail: str  # library or transform
    num_calls: int
    seconds: float
    cpu_seconds: float
    num_bytes: int


class TierCounts(NamedTuple):
    """A tier of a loader's cache."""

    name: TierName
    num_hits: int
    num_bytes: int
    budget_bytes: int
    seconds_saved: float


class RemoteCounts(NamedTuple):
    """What a loader's cache did with remote objects."""

    num_hits: int
    num_downloads: int
    num_bytes: int
    num_retries: int
    num_direct: int


@dataclass(kw_only=True)
class RawSegment:
    """Consecutive steps under one condition."""

    name: str
    is_baseline: bool = False  # beside the segments of this name, without what these turn on
    began: float | None = None  # None: when its first step ended
    settle: int = 0  # steps at its start that are not counted
    ends: list[float] = field(default_factory=list)  # of its steps


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """What a loader was made with: loaders with equal settings are one."""

    name: str  # the dataset's class
    num_workers: int = 0
    batch_size: int | None = None
    num_batches: int | None = None
    num_samples: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    start_method: StartMethod | None = None
    drop_last: bool = False
    where: Place | None = None


@dataclass(kw_only=True)
class Drawn:
    """What choosing the indices of batches took, in the training process: in all, and how many times."""

    seconds: float = 0.0
    times: int = 0


@dataclass(kw_only=True)
class RawLoader:
    """A loader that the process iterated."""

    settings: LoaderSettings
    recreated: bool = False  # each epoch has a DataLoader of its own
    pids: list[int] = field(default_factory=list)  # of its workers
    bytes_per_batch: int | None = None
    dtypes: tuple[str, ...] = ()
    sampling: Drawn = field(default_factory=Drawn)  # of each batch but an epoch's first
    sampling_at_start: Drawn = field(default_factory=Drawn)  # of each epoch's first, and those of batches made ahead
    cache: tuple[TierCounts, ...] = ()
    remote: RemoteCounts | None = None
    num_cache_misses: int | None = None
    indices: list[list[int]] = field(default_factory=list)  # of one rank of several: the first of each epoch
    samples: dict[str, list[str]] = field(default_factory=dict)  # by index: a fingerprint for each tensor of a batch


@dataclass(frozen=True, kw_only=True)
class RawModel:
    """A root module, as `records.ModelFacts`."""

    name: str
    num_parameters: int
    num_modules: int
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    num_convolutions: int
    channels_last: bool
    compiled: bool
    data_parallel: bool


@dataclass(frozen=True, kw_only=True)
class RawOptimizer:
    """An optimizer that stepped; `id` is the detail of its spans."""

    id: int
    name: str
    num_parameters: int
    num_tensors: int
    fused: bool | None
    foreach: bool | None


@dataclass(frozen=True, kw_only=True)
class RawFacts:
    """What the script is, read once at the end; see `records.Facts`."""

    num_threads: int = 1
    anomaly_detection: bool = False
    profiler: bool = False
    deterministic: bool = False
    cudnn_benchmark: bool | None = None
    tf32: bool | None = None
    num_input_shapes: int | None = None
    frameworks: tuple[str, ...] = ()
    device: str = "cpu"
    models: tuple[RawModel, ...] = ()
    optimizers: tuple[RawOptimizer, ...] = ()
    subnormal_share: float | None = None
    gather_seconds: float | None = None
    call_overhead: float | None = None  # seconds


@dataclass(frozen=True, kw_only=True)
class RawDdp:
    """A DistributedDataParallel."""

    num_bytes: int  # of the gradients that it exchanges
    find_unused: bool
    unused_bytes: int  # of parameters that a backward did not reach
    static_graph: bool
    bucket_view: bool
    hook: str  # that the script registered


@dataclass(kw_only=True)
class RawGroup:
    """The process group of a rank."""

    rank: int
    world_size: int
    backend: str
    host: str
    node: int
    job: str  # the same on all ranks
    omp_threads: str | None  # OMP_NUM_THREADS
    is_elastic: bool  # started by torchrun
    ddps: tuple[RawDdp, ...] = ()


@dataclass(kw_only=True)
class SampledEpoch:
    """What a sampler gave in one epoch."""

    dataset: int  # its number
    order: list[str] = field(default_factory=list)  # a fingerprint a batch
    num_keys: int | None = None  # None: it is not over
    repeats: bool = False  # a key came twice


@dataclass(kw_only=True)
class RawQuality:
    """What training did to the model, and whether it trained on the script's own samples."""

    losses: list[float] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)  # fingerprints
    held_out: list[str] = field(default_factory=list)  # of a validation's batches
    means: list[float | None] = field(default_factory=list)  # of batches
    rows: list[list[str]] = field(default_factory=list)  # fingerprints of samples, by batch
    gradients: str | None = None  # some of the first step's, as float32 in base64
    moved: list[bool] | None = None  # whether each parameter changed
    parameters: str | None = None  # a fingerprint of all of them at the end
    ranks_agree: bool | None = None  # in it; None: it trains alone
    epochs: list[SampledEpoch] = field(default_factory=list)  # of all loaders, in the order in which they began
    num_equal: int = 0  # samples that were the same to the bit when they were made once more
    num_other: int = 0
    samples_trouble: str = ""  # why no more samples were made once more


@dataclass(kw_only=True)
class RawRun:
    """All that a measured process has seen."""

    pid: int
    ended_by: EndedBy
    rank: int = 0
    boundary: Literal["optimizer", "backward"] = "optimizer"  # what ends a step
    first_step_at: float | None = None
    started_at: float | None = None  # when the warm-up ended, had it not waited to begin
    segments: list[RawSegment]
    spans: list[Span]
    device_spans: list[DeviceSpan] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    first_place: dict[Phase, int] = field(default_factory=dict)  # from which each kind of span was entered
    lines: list[LineSeconds] = field(default_factory=list)
    loaders: list[RawLoader] = field(default_factory=list)
    not_applied: dict[str, str] = field(default_factory=dict)  # conditions that could not be turned on, and why
    facts: RawFacts = field(default_factory=RawFacts)
    group: RawGroup | None = None  # None: it trains alone
    num_operators: int | None = None  # of one step's computing
    num_calls: int | None = None  # from Python into torch in it
    num_flops: int | None = None
    run_delay: float | None = None  # seconds after the warm-up that the training thread was ready and had no core
    memory_requests: float | None = None  # of the GPU's allocator to its driver, after the warm-up
    drained: list[float] | None = None  # seconds between batches of the loader alone
    drain_trouble: str = ""
    quality: RawQuality | None = None
    seconds_per_mark: float = 0.0
    trouble: str | None = None  # what ended measuring
    outside_sandbox: bool = False  # a service has started it, where no overlay covers what it sees
    redirected_late: bool = False  # without overlay: file writes were not redirected until torch was imported
    facts_trouble: str | None = None  # why there are no facts

    @property
    def num_steps(self) -> int:
        """Steps of all segments."""
        return sum(len(segment.ends) for segment in self.segments)

    @property
    def with_workers(self) -> frozenset[int]:
        """The loaders that have workers."""
        return frozenset(n for n, loader in enumerate(self.loaders) if loader.settings.num_workers)


@dataclass(kw_only=True)
class StageLine:
    """What making a batch cost, reported by the process that made it."""

    pid: int
    start: float
    end: float
    stages: list[StageSeconds]
    is_task: bool = False  # part of a batch of hasten's own loader: what follows is unknown
    loader: int | None = None  # None: the one whose worker this is
    delay: float | None = None  # seconds that the worker was ready and had no core
    num_samples: int = 0
    batch_seconds: list[float] = field(default_factory=list)  # of the batches since the last line, and of this
    sample_seconds: list[float] = field(default_factory=list)  # of some samples
    held_bytes: int = 0  # by the dataset
    sample_bytes: int = 0
    files: list[str] = field(default_factory=list)  # that were read
    lines: list[LineSeconds] | None = None  # None: nobody looked


def busiest(raws: Sequence[RawRun]) -> RawRun:
    """The process that made most steps; among equals the lowest rank."""
    return max(raws, key=lambda raw: (raw.num_steps, -raw.rank))
