"""Choose the number of workers and of prefetched batches from measured rates, during the epoch.

By Little's law, the number of busy workers is the samples consumed per second times the seconds per sample. Additional workers
would wait for work; with fewer, the training loop waits. If workers wait for a disk instead of a core, using more workers than
cores pays off.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from hasten.cgroup import find_cgroup, read_quota
from hasten.data.epoch.stats import Counts

CHECK_SECONDS = 1.0  # between checks
MIN_BATCHES = 8  # between checks
LOOP_WAITS = 0.05  # fraction of time in `next()`: the workers are too few, or too uneven
LOOP_IS_FED = 0.01  # fraction of time in `next()`: there may be too many workers
WORKERS_IDLE = (
    0.2  # fraction of the workers' time; above it, uneven samples are the cause and not the number of workers
)
ON_CORES = 0.7  # CPU seconds / seconds; above it, work is limited by the cores
MARGIN = 1.3  # factor on Little's law, because samples are uneven
MAX_FACTOR = 16
MAX_PER_CORE = 4


@dataclass(frozen=True)
class WorkerPlan:
    """The number of workers, and how far they prefetch."""

    num_workers: int
    factor: int
    """Prefetched batches per worker."""


@dataclass(frozen=True)
class Interval:
    """Measurements between two checks; seconds are wall time unless noted."""

    seconds: float
    waited: float
    """In `next()`."""
    worked: float
    """By all workers."""
    cpu_seconds: float
    """CPU time of all workers."""


@dataclass(frozen=True)
class Reading:
    """The counts at one point in time."""

    num_batches: int
    waited: float
    worked: float
    cpu_seconds: float
    at: float

    @staticmethod
    def now(counts: Counts, at: float) -> Reading:
        """Read the counts at a time in seconds."""
        return Reading(counts.num_batches, counts.wait_seconds, counts.worked_seconds, counts.cpu_seconds, at)

    def since(self, counts: Counts, at: float) -> Interval | None:
        """Return what was measured since; None if that is too little to decide on."""
        if at - self.at < CHECK_SECONDS or counts.num_batches - self.num_batches < MIN_BATCHES:
            return None
        return Interval(
            seconds=at - self.at,
            waited=counts.wait_seconds - self.waited,
            worked=counts.worked_seconds - self.worked,
            cpu_seconds=counts.cpu_seconds - self.cpu_seconds,
        )


def usable_cores() -> int:
    """Return the number of cores this process may use, by affinity and by the control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = read_quota(find_cgroup("cpu"))
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def adjusted(plan: WorkerPlan, interval: Interval, *, cores: int) -> WorkerPlan:
    """Return the number of workers and of prefetched batches to use next."""
    wait = interval.waited / interval.seconds
    busy = interval.worked / interval.seconds  # workers, on average
    if wait > LOOP_WAITS and busy < (1.0 - WORKERS_IDLE) * plan.num_workers:
        return WorkerPlan(plan.num_workers, min(MAX_FACTOR, 2 * plan.factor))
    if wait > LOOP_WAITS:
        on_cores = interval.cpu_seconds > ON_CORES * interval.worked
        most = cores if on_cores else MAX_PER_CORE * cores
        more = plan.num_workers + max(1, plan.num_workers // 2)
        return WorkerPlan(max(plan.num_workers, min(most, more)), plan.factor)
    if wait < LOOP_IS_FED:
        return WorkerPlan(max(1, min(plan.num_workers, math.ceil(busy * MARGIN))), plan.factor)
    return plan
