"""What a measured process does with its steps: which are timed, with what switched on, and when it is enough.

In: the seconds of the steps so far. Out: segments, one after another; the session carries them out. Refuses to
touch torch: what a segment switches on is somebody else's function.

Measuring alternates unmarked and marked segments in the order A B B A, so that the cost of marking is measured in
every run and a drift of the machine's speed falls on both sides alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hasten.raw_run import MARKED, PLAIN
from hasten.stats import mean_interval

TURN = 0.1  # seconds; the shorter, the more of them tell, but caches must warm up in each
JOINED = 4  # batches joined to one, to see what a larger batch would cost


def nothing() -> None:
    """Do nothing."""


@dataclass(kw_only=True)
class Segment:
    """A stretch of steps under one condition."""

    name: str
    is_baseline: bool = False  # beside the segments of this name, without what these turn on
    full: bool = False  # mark every phase
    min_seconds: float = 0.5
    min_steps: int = 2
    settle: int = 0  # steps at its start that are not counted
    enter: Callable[[], object] = nothing
    leave: Callable[[], object] = nothing


@dataclass
class History:
    """What the session has seen; programs read it."""

    seconds: dict[str, list[float]] = field(default_factory=dict)  # mean step of each ended segment, by name
    num_steps: int = 0  # measured so far
    measuring: float = 0.0  # seconds since the warm-up ended
    epoch_left: float | None = None  # expected seconds to the end of the epoch; None: not known
    epochs_seen: int = 0  # epoch starts since the warm-up ended


Program = Iterator[Segment]


def measure(
    history: History,
    *,
    num_steps: int | None,
    seconds: float,
    steady: float = 0.02,
    last: Segment | None = None,
) -> Program:
    """Alternate plain and marked segments until the figure is steady, `num_steps` are done or `seconds` are over.

    Steady: the 95% interval of the mean step is within 2% of it, over at least 5 s, 20 steps and four plain segments.
    An epoch that would end within the time is waited for, for its end carries costs of its own. `last` is a
    segment to end with.
    """
    length = max(0.4, min(2.0, seconds / 12))
    least = 2
    if num_steps is not None:
        # Both sides get their half of so many steps, however short.
        length, least = 0.0, max(1, num_steps // 4)
    while True:
        for name in (PLAIN, MARKED, MARKED, PLAIN):
            yield Segment(name=name, full=name == MARKED, min_seconds=length, min_steps=least)
            if _enough(history, num_steps=num_steps, seconds=seconds, steady=steady):
                if last is not None:
                    yield last
                return


def _enough(history: History, *, num_steps: int | None, seconds: float, steady: float) -> bool:
    if history.measuring >= seconds:
        return True
    if num_steps is not None:
        return history.num_steps >= num_steps and MARKED in history.seconds
    means = history.seconds.get(PLAIN, [])
    if history.measuring < min(5.0, seconds) or history.num_steps < 20 or len(means) < 4:
        return False
    left = history.epoch_left
    if not history.epochs_seen and left is not None and history.measuring + left < 0.6 * seconds:
        return False
    interval = mean_interval(means)
    return (interval.high - interval.low) / 2 <= steady * interval.value or history.measuring >= 0.5 * seconds


def endless() -> Program:
    """Plain and marked segments for as long as steps are made."""
    while True:
        for name in (PLAIN, MARKED, MARKED, PLAIN):
            yield Segment(name=name, full=name == MARKED, min_seconds=0.4)


def plain(history: History, *, seconds: float) -> Program:
    """Only the time of record, in eight segments; in four at least where steps are so slow that these fill the time."""
    for done in range(8):
        if done >= 4 and history.measuring >= seconds:
            return
        yield Segment(name=PLAIN, min_seconds=seconds / 8, min_steps=1)


def in_turns(history: History, *, seconds: float, wait: Callable[[], object]) -> Program:
    """The same in short segments, each of which waits for its turn: eight, or four where these fill the time.

    What happened meanwhile has emptied the caches: a short step at a segment's start is not counted.
    """
    length = min(TURN, seconds / 8)
    done = 0
    while done < 4 or history.measuring < seconds:
        means = history.seconds.get(PLAIN, [])
        settle = int(bool(means) and means[-1] < length / 4)
        yield Segment(name=PLAIN, min_seconds=length, min_steps=1, settle=settle, enter=wait)
        done += 1


def first_steps(history: History, *, num_steps: int, seconds: float) -> Program:
    """So many steps and no more, or what `seconds` hold of them."""
    while history.num_steps < num_steps and history.measuring < seconds:
        yield Segment(name=PLAIN, min_seconds=0.2, min_steps=1)


@dataclass(kw_only=True)
class Switch:
    """Something that can be turned on and off between two steps."""

    name: str
    on: Callable[[], object]
    off: Callable[[], object]
    settle: int = 1


def alternate(
    switches: Sequence[Switch],
    *,
    seconds: float,
    rounds: int = 3,
    min_steps: int = 1,
    time_left: Callable[[], float] = lambda: math.inf,
) -> Program:
    """Each switch against the plain step, in the order A B B A.

    Args:
        switches: what is turned on and off, one after another.
        seconds: for each switch.
        rounds: of A B B A.
        min_steps: of a segment.
        time_left: seconds; once there are none, no further switch is begun.
    """
    length = seconds / (4 * rounds)
    for switch in switches:
        if time_left() <= 0:
            return
        before = None
        for _ in range(rounds):
            for on in (False, True, True, False):
                changed, before = on != before, on
                yield Segment(
                    name=switch.name,
                    is_baseline=not on,
                    min_seconds=length,
                    min_steps=min_steps,
                    settle=switch.settle if changed else 0,
                    enter=switch.on if on else nothing,
                    leave=switch.off if on else nothing,
                )
