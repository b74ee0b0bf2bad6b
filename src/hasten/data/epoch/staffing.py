"""How many workers, and how many batches ahead: from measured rates, corrected while the epoch runs.

Little's law: as many workers are busy as samples are consumed a second times the seconds that each takes. More than that wait
for work, fewer are waited for. Where they wait for a disk rather than for a core, more workers than cores pay off.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from hasten.cgroup import find_cgroup, read_quota
from hasten.data.epoch.stats import Counts

LOOK_SECONDS = 1.0  # between looks
LEAST_BATCHES = 8  # in a look
HELD_UP = 0.05  # of the time in `next()`: the workers are too few, or too uneven
FREE = 0.01
IDLE = 0.2  # of the workers' time, from which uneven samples are to blame and not their number
ON_CORES = 0.7  # CPU seconds / seconds from which work needs a core
MARGIN = 1.3  # more workers than Little's law says, for the unevenness of samples
MOST_FACTOR = 16
MOST_PER_CORE = 4


@dataclass(frozen=True)
class Staff:
    """Who works, and how far ahead."""

    num_workers: int
    factor: int
    """Batches ahead for each worker."""


@dataclass(frozen=True)
class Seen:
    """What was seen between two looks; seconds are wall time but for the last."""

    seconds: float
    waited: float
    """In `next()`."""
    worked: float
    """In all workers."""
    cpu_seconds: float
    """In all workers."""


@dataclass(frozen=True)
class Look:
    """What had been counted when somebody looked."""

    num_batches: int
    waited: float
    worked: float
    cpu_seconds: float
    at: float

    @staticmethod
    def now(counts: Counts, at: float) -> Look:
        """A look at the counts, at a time in seconds."""
        return Look(counts.num_batches, counts.wait_seconds, counts.worked_seconds, counts.cpu_seconds, at)

    def since(self, counts: Counts, at: float) -> Seen | None:
        """What was seen since; None while that is too little to tell."""
        if at - self.at < LOOK_SECONDS or counts.num_batches - self.num_batches < LEAST_BATCHES:
            return None
        return Seen(
            seconds=at - self.at,
            waited=counts.wait_seconds - self.waited,
            worked=counts.worked_seconds - self.worked,
            cpu_seconds=counts.cpu_seconds - self.cpu_seconds,
        )


def usable_cores() -> int:
    """Cores that this process may use, by affinity and by the control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = read_quota(find_cgroup("cpu"))
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def corrected(staff: Staff, seen: Seen, *, cores: int) -> Staff:
    """The staff for what comes next."""
    wait = seen.waited / seen.seconds
    busy = seen.worked / seen.seconds  # workers, on average
    if wait > HELD_UP and busy < (1.0 - IDLE) * staff.num_workers:
        return Staff(staff.num_workers, min(MOST_FACTOR, 2 * staff.factor))
    if wait > HELD_UP:
        on_cores = seen.cpu_seconds > ON_CORES * seen.worked
        most = cores if on_cores else MOST_PER_CORE * cores
        more = staff.num_workers + max(1, staff.num_workers // 2)
        return Staff(max(staff.num_workers, min(most, more)), staff.factor)
    if wait < FREE:
        return Staff(max(1, min(staff.num_workers, math.ceil(busy * MARGIN))), staff.factor)
    return staff
