"""What the ranks of one job did in the same steps."""

from __future__ import annotations

from typing import Literal

from hasten.protocol import Phase
from hasten.records.codec import RECORD_VERSION, Record
from hasten.records.values import Interval, Where

SamplingFault = Literal["same", "whole", "overlap"]
"""Same: all ranks take the same samples in the same order. Whole: each takes all of them. Overlap: a split by unequal seeds."""


class Ddp(Record, frozen=True):
    """A model that the script wrapped in DistributedDataParallel."""

    num_bytes: int  # of gradients, exchanged in every step
    find_unused: bool
    unused_bytes: int  # of parameters that a backward did not reach
    static_graph: bool
    bucket_view: bool
    hook: str = ""  # the script's communication hook


class Exchange(Record, frozen=True):
    """A place outside the model where the script waits for a collective."""

    where: Where
    calls: float  # per step
    seconds: float  # per step


class RankData(Record, frozen=True):
    """Which samples a rank took."""

    num_samples: int | None  # in its dataset
    num_drawn: int | None  # in an epoch
    orders: tuple[tuple[int, ...], ...]  # the first indices of each epoch
    samples: dict[str, tuple[str, ...]] = {}  # by index: a fingerprint for each tensor of a batch


class RankSteps(Record, frozen=True):
    """One rank's instrumented steps, in columns: what is compared between ranks, and joined between hosts."""

    rank: int
    world_size: int
    host: str
    node: int
    job: str  # the same on all ranks of a job
    backend: str
    indices: tuple[int, ...]  # of its steps, counted from the script's first
    seconds: tuple[float, ...]
    phases: dict[Phase, tuple[float, ...]]
    rare: dict[Phase, float] = {}  # seconds per step, over all steps
    samples_per_step: float | None = None
    num_threads: int = 1
    num_workers: int = 0
    run_delay: float | None = None  # seconds per step that it was ready and had no core
    omp_threads: str | None = None  # OMP_NUM_THREADS
    is_elastic: bool = False  # started by torchrun
    exchanges: tuple[Exchange, ...] = ()
    data: RankData | None = None


class RankFile(Record, frozen=True):
    """`ranks.json` of a run."""

    ranks: tuple[RankSteps, ...]
    version: int = RECORD_VERSION


class RankRow(Record, frozen=True):
    """One rank, by mean seconds per step. `phases` and `waiting` sum to the step."""

    rank: int
    host: str
    phases: dict[Phase, float]  # `communication` without `waiting`; `script` is all that is in no other phase
    waiting: float  # for ranks that arrived later at a collective
    samples_per_step: float | None = None


class Late(Record, frozen=True):
    """Ranks that the others wait for."""

    ranks: tuple[int, ...]
    phase: Phase  # in which they take longer
    excess: float  # seconds per step that they take longer in it
    saved: Interval  # seconds per step, if they were like the others
    share: float  # of the steps in which one of them came last


class Ranks(Record, frozen=True):
    """All ranks of a job, compared."""

    world_size: int
    backend: str
    num_steps: int  # that all of them made, instrumented
    step_seconds: float
    rows: tuple[RankRow, ...]
    missing: tuple[int, ...] = ()  # ranks without a record
    num_hosts: int = 1
    late: Late | None = None
    imbalance: float = 0.0  # seconds per step that ranks which are late in turn cost, beyond the wait for cores
    transfer: float = 0.0  # seconds per step that communication takes on the rank that waits least
    exchanges: tuple[Exchange, ...] = ()
    only: dict[Phase, tuple[int, ...]] = {}  # validation and checkpoint: the ranks that do it while the others do not
    sampling: SamplingFault | None = None
    repeats_order: bool = False  # every epoch shuffles alike: the sampler does not know the epoch
    threads_per_rank: int = 1
    ranks_per_host: int = 1
    forced_threads: bool = False  # torchrun limits each rank to one thread
