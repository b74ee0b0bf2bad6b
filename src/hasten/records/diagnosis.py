"""The conclusions from a run."""

from __future__ import annotations

from typing import Literal

from hasten.protocol import Phase
from hasten.records.codec import Record
from hasten.records.run import Interval, Verdict, Where

# Each has a section in docs/bottlenecks.md.
FindingKind = Literal[
    "slow_read",
    "slow_decode",
    "slow_transform",
    "slow_collate",
    "slow_sampler",
    "slow_transport",
    "waiting_samples",
    "too_few_workers",
    "too_many_workers",
    "worker_startup",
    "python_bound_data",
    "shallow_prefetch",
    "busy_machine",
    "pageable_copy",
    "blocking_copy",
    "wide_copy",
    "default_stream_copy",
    "sync_points",
    "launch_bound",
    "full_precision",
    "double_precision",
    "channels_first",
    "cudnn_autotune",
    "unfused_optimizer",
    "zero_grad_in_place",
    "anomaly_detection",
    "profiler_on",
    "validation_gradients",
    "validation_often",
    "checkpoint_often",
    "logging_each_step",
    "small_batch",
    "memory_full",
    "allocator_thrash",
    "page_faults",
    "thread_contention",
    "denormals",
    "cuda_unused",
    "cpu_only_build",
    "data_parallel",
    "script_bound",
    "straggler",
    "uneven_steps",
    "uneven_shards",
    "exposed_communication",
    "rank_exchange",
    "rank_validation",
    "rank_checkpoint",
    "unused_parameters",
    "too_many_threads",
    "few_threads",
]
CautionKind = Literal["same_samples", "overlapping_samples", "same_order"]  # each has a section there, too


class Breakdown(Record, frozen=True):
    """Where the mean step goes. `phases` and `unaccounted` sum to `step_seconds`; None means not seen."""

    step_seconds: float  # mean uninstrumented step time, infrequent phases included
    median_seconds: float
    spread: Interval | None  # 95% interval of the mean; None if there are too few steps
    phases: dict[Phase, float | None]
    unaccounted: float
    samples_per_second: float | None
    num_steps: int
    device_seconds: float | None = None  # seconds per step that the device is busy; None on the CPU
    device_wait: float | None = None  # seconds per step that the device is idle while the host waits for data
    device_waited: float = (
        0.0  # part of device_seconds in which the device had finished before the host queued more work
    )
    device_phases: dict[Phase, float] = {}  # device seconds of the work that was queued in each phase


class Ceiling(Record, frozen=True):
    """The best possible step times of this script on this machine. None: not measured."""

    free_batches: float | None = None  # with instant data loading: batches replayed
    free_copies: float | None = None  # with instant copies too: batches replayed from the device
    loader_alone: float | None = None  # seconds for loading a step's batches without the model
    headroom: float | None = None  # step time minus free_batches


class Finding(Record, frozen=True):
    """A bottleneck: its cost, the evidence, the place in the source, and what to do."""

    kind: FindingKind
    title: str
    recoverable: float  # seconds per step that fixing it would save
    interval: Interval | None = None  # of recoverable, if measured by an intervention
    confirmed_by: str | None = None  # the intervention; None: inferred from this run only
    because: tuple[str, ...] = ()
    remedy: str = ""
    where: Where | None = None


class Caution(Record, frozen=True):
    """Something that is wrong with the training itself, whatever its speed."""

    kind: CautionKind
    title: str
    because: str
    remedy: str
    where: Where | None = None


class WhatIf(Record, frozen=True):
    """A predicted step time after a change of hardware or caching."""

    change: str
    step_seconds: float
    because: str


class CacheNeed(Record, frozen=True):
    """The memory that a full cache of the decoded dataset would need."""

    bytes_per_sample: float
    num_samples: int
    total_bytes: float
    k_factor: float | None  # total_bytes / bytes of the files
    fits_share: float  # share of the samples that fits in the memory available now


class Diagnosis(Record, frozen=True):
    """All conclusions from one run."""

    verdict: str
    breakdown: Breakdown
    ceiling: Ceiling
    findings: tuple[Finding, ...]
    cautions: tuple[Caution, ...] = ()  # come before all findings
    unexplained: float = 0.0  # seconds per step that instant data loading would save, and that no finding explains
    what_ifs: tuple[WhatIf, ...] = ()
    cache: CacheNeed | None = None


class Comparison(Record, frozen=True):
    """A comparison of step times of earlier and later runs of a script."""

    ratio: Interval  # new / old step time; above 1 is slower
    verdict: Verdict  # "slower": beyond max_slowdown; "no difference": within it
    max_slowdown: float  # the allowed slowdown: 0.05 for 5%
    old_seconds: tuple[float, ...]  # mean step time of each run, or of each segment if there is one run on a side
    new_seconds: tuple[float, ...]
    notes: tuple[str, ...] = ()


class CheckLine(Record, frozen=True):
    """One line of `hasten check`."""

    topic: str
    state: Literal["good", "warning", "bad", "unknown"]
    text: str
    remedy: str = ""
