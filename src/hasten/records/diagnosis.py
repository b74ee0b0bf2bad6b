"""What is concluded from a Run."""

from __future__ import annotations

from typing import Literal

from hasten.records.codec import Record
from hasten.records.run import Interval, Phase, Verdict, Where


class Breakdown(Record, frozen=True):
    """Where the mean step goes. `phases` and `unaccounted` sum to `step_seconds`; None is not seen."""

    step_seconds: float  # time of record, everything included
    median_seconds: float
    spread: Interval | None  # 95% interval of the mean; None when there are too few steps for one
    phases: dict[Phase, float | None]
    unaccounted: float
    samples_per_second: float | None
    num_steps: int
    device_seconds: float | None = None  # device busy in a step; None on the CPU
    device_wait: float | None = None  # device idle while the host waited for data
    device_waited: float = 0.0  # of device_seconds, where the device was done before the host asked for more
    device_phases: dict[Phase, float] = {}  # what the device takes for what was asked of it in each phase


class Ceiling(Record, frozen=True):
    """How fast this script could go on this machine, as a step time. None: not measured."""

    free_batches: float | None = None  # batches replayed
    free_copies: float | None = None  # batches replayed from the device
    loader_alone: float | None = None  # seconds a step's batches, no model
    headroom: float | None = None  # step time minus free_batches


class Finding(Record, frozen=True):
    """A bottleneck: what it costs, how that is known, where it is, what to do."""

    kind: str  # a section of docs/bottlenecks.md
    title: str
    recoverable: float  # seconds a step
    interval: Interval | None = None  # of recoverable, where measured by intervention
    confirmed_by: str | None = None  # the intervention; None: inferred from this run alone
    because: tuple[str, ...] = ()
    remedy: str = ""
    where: Where | None = None


class WhatIf(Record, frozen=True):
    """A predicted step time after a change of hardware or of what is kept in memory."""

    change: str
    step_seconds: float
    because: str


class CacheNeed(Record, frozen=True):
    """What a full cache of the decoded dataset would take."""

    bytes_per_sample: float
    num_samples: int
    total_bytes: float
    k_factor: float | None  # total_bytes / bytes of the files
    fits_share: float  # of the samples, in the memory available now


class Diagnosis(Record, frozen=True):
    """All that was concluded from one Run."""

    verdict: str
    breakdown: Breakdown
    ceiling: Ceiling
    findings: tuple[Finding, ...]
    what_ifs: tuple[WhatIf, ...] = ()
    cache: CacheNeed | None = None


class Comparison(Record, frozen=True):
    """The step times of one script's runs, before and after."""

    ratio: Interval  # new / old step time; above 1 is slower
    verdict: Verdict  # "slower": beyond what is allowed; "no difference": within it
    max_slowdown: float  # that is allowed: 0.05 for 5%
    old_seconds: tuple[float, ...]  # mean step of each run, or of each stretch where there is one run a side
    new_seconds: tuple[float, ...]
    notes: tuple[str, ...] = ()


class CheckLine(Record, frozen=True):
    """One line of `hasten check`."""

    topic: str
    state: Literal["good", "warning", "bad", "unknown"]
    text: str
    remedy: str = ""
