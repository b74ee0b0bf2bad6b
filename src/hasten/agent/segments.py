"""What a measured process does with its steps: segments, one after another, and which one is on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hasten.raw_run import MARKED, PLAIN, WARM_UP, RawSegment
from hasten.stats import mean_interval, ratio_interval

TURN = 0.1  # seconds; the shorter, the more there are to compare, but caches must warm up in each
SOME_GAIN = 0.95  # of the plain step's time: a switch that takes less, and not surely, is tried for longer
NO_GAIN = 0.99  # of the plain step's time: a switch that takes more in its first round is not tried further
JOINED = 4  # batches joined to one, to see what a larger batch would cost


def nothing() -> None:
    """Do nothing."""


@dataclass(kw_only=True)
class Segment:
    """Steps under one condition."""

    name: str
    is_baseline: bool = False  # beside the segments of this name, without what these turn on
    full: bool = False  # mark every phase
    min_seconds: float = 0.5
    min_steps: int = 2
    settle: int = 0  # steps at its start that are not counted
    regular: bool = False  # a step in which a loader starts is not counted either, and another takes its place
    enter: Callable[[], object] = nothing
    leave: Callable[[], object] = nothing


@dataclass
class History:
    """What the session has seen; programs read it, and nothing else.

    Of several ranks all go by one's, so that their programs take the same course.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)  # mean step of each ended segment, by name
    num_steps: int = 0  # measured so far
    measuring: float = 0.0  # seconds since the warm-up ended
    epoch_left: float | None = None  # expected seconds to the end of the epoch; None: not known
    epochs_seen: int = 0  # epoch starts since the warm-up ended
    warm_step: float = 0.0  # mean seconds of the warm-up's steps after the first
    num_spans: int = 0  # that were put down
    queued: int = 0  # batches that lay ready when the last segment ended
    age: float = 0.0  # seconds from the process's start to then

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return self.measuring / self.num_steps if self.num_steps else self.warm_step


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
    length = max(0.4, min(1.0, seconds / 12))
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
    """Uninstrumented steps only, in eight segments; at least four if steps are so slow that these fill the time."""
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
    """So many steps and no more, the first one included; or what `seconds` hold of them."""
    chunk = max(1, num_steps // 8)  # between looks at the time
    left = num_steps - 1
    while left > 0 and history.measuring < seconds:
        yield Segment(name=PLAIN, min_seconds=0.0, min_steps=min(chunk, left))
        left = num_steps - 1 - history.num_steps


@dataclass(kw_only=True)
class Switch:
    """Something that can be turned on and off between two steps."""

    name: str
    on: Callable[[], object]
    off: Callable[[], object]
    settle: int = 1


def alternate(
    history: History,
    switches: Sequence[Switch],
    *,
    seconds: float,
    rounds: int = 3,
    min_steps: int = 1,
    time_left: Callable[[], float] = lambda: math.inf,
) -> Program:
    """Each switch against the plain step, in the order A B B A; one that gains nothing in the first round gets no other.

    One that seems to gain, by an interval that leaves it open, gets up to twice as many rounds, also when no time is left.

    Args:
        history: what was seen so far.
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
        for number in range(2 * rounds):
            means = history.seconds.get(switch.name, [])
            if number and _gains_nothing(means):
                break
            if number >= rounds and not _is_unclear(means):
                break
            for on in (False, True, True, False):
                changed, before = on != before, on
                yield Segment(
                    name=switch.name,
                    is_baseline=not on,
                    min_seconds=length,
                    min_steps=min_steps,
                    settle=switch.settle if changed else 0,
                    regular=True,
                    enter=switch.on if on else nothing,
                    leave=switch.off if on else nothing,
                )


def _gains_nothing(means: Sequence[float]) -> bool:
    """Whether the first round, A B B A, shows next to no gain."""
    return len(means) >= 4 and means[1] + means[2] > NO_GAIN * (means[0] + means[3])


def _is_unclear(means: Sequence[float]) -> bool:
    """Whether a switch seems to gain enough to be worth more rounds, by an interval that does not show it."""
    plain, switched = [*means[::4], *means[3::4]], [*means[1::4], *means[2::4]]
    ratio = ratio_interval(switched, plain) if plain and switched else None
    return ratio is not None and ratio.value < SOME_GAIN and ratio.high >= 1.0


WARM_STEPS = 3
WARM_SECONDS = 1.0
LONGEST_WARM_UP = 15.0  # seconds; slow steps are worth more than a long warm-up
PATIENCE = 2.0  # seconds, or four times its length, after which a segment ends with fewer steps than it wants


class SegmentScheduler:
    """The segments of one process, and the ends of its steps in them."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.segments = [RawSegment(name=WARM_UP)]
        self.first_step_at: float | None = None
        self.start: Callable[[float], float] = lambda now: now  # after the first step: when the warm-up may begin
        self.held = 0.0  # seconds until it might
        self.started_at: float | None = None  # when the warm-up ended
        self.rested = 0.0  # seconds since then in which others had their turn
        self.segment: Segment | None = None
        self.cold: Callable[[], bool] = lambda: False  # the warm-up continues while it is, up to `longest_warm_up`
        self.least_warm_up, self.longest_warm_up = WARM_SECONDS, LONGEST_WARM_UP
        self.warms_up = True  # otherwise the first step alone is the warm-up
        self.catch_up: Callable[[float], float] = lambda now: now  # at both ends of a segment: wait for the device
        self.agree: Callable[[bool], bool] = lambda full: (
            full
        )  # whether the segment, full or not, ends with this step
        self._program: Program = iter(())
        self._begun = 0.0
        self._steps = 0  # of this segment
        self._loader_starts = False  # in the step that is on
        self._aside: float | None = None  # seconds of the one step of this segment that is not counted

    def follow(self, program: Program) -> None:
        """Set what to do once the warm-up is over."""
        self._program = program

    def loader_starts(self) -> None:
        """An epoch or a validation begins within this step."""
        self._loader_starts = True

    @property
    def num_steps_of_segment(self) -> int:
        """Steps of the segment that is on, at least one."""
        return max(1, self._steps)

    @property
    def num_steps(self) -> int:
        """Steps that have ended, those of the warm-up among them."""
        return sum(len(segment.ends) for segment in self.segments)

    def step(self, now: float) -> bool:
        """A step has ended; True if its segment ends with it."""
        if self.first_step_at is None:
            self.first_step_at = self.start(now)
            self.held, now = self.first_step_at - now, self.first_step_at
        segment = self.segment
        if segment is None:
            over, begins = self.agree(self._is_warm(now)), False
        else:
            self._steps += 1
            self.history.num_steps += 1
            # Only one: an epoch may be a single step.
            if segment.regular and self._loader_starts and self._steps > segment.settle and self._aside is None:
                ends = self.segments[-1].ends
                self._aside = now - (ends[-1] if ends else self._begun)
            over, begins = self.agree(self._is_full(segment, now)), self._steps == segment.settle
        if over or begins:
            now = self.catch_up(now)
        self.segments[-1].ends.append(now)
        self._loader_starts = False
        if segment is None and over:
            self.started_at = now
        if begins:
            self._begun = now
        return over

    def _is_full(self, segment: Segment, now: float) -> bool:
        taken, elapsed = self._counted(segment, now)
        if taken < 1 or elapsed < segment.min_seconds:
            return False
        return taken >= segment.min_steps or elapsed >= max(PATIENCE, 4 * segment.min_seconds)

    def _counted(self, segment: Segment, now: float) -> tuple[int, float]:
        """Steps of the segment that count, and their seconds."""
        taken, elapsed = self._steps - segment.settle, now - self._begun
        return (taken, elapsed) if self._aside is None else (taken - 1, elapsed - self._aside)

    def _is_warm(self, now: float) -> bool:
        assert self.first_step_at is not None
        if not self.warms_up:
            return True
        done, elapsed = self.num_steps + 1, now - self.first_step_at
        if self.cold() and elapsed < self.longest_warm_up:
            return False
        return (done > WARM_STEPS and elapsed >= self.least_warm_up) or (done >= 2 and elapsed >= LONGEST_WARM_UP)

    def ended(self, now: float) -> History:
        """The history as it is once the segment has ended now."""
        history, segment = replace(self.history, seconds={**self.history.seconds}), self.segment
        if segment is not None:
            taken, elapsed = self._counted(segment, now)
            history.seconds[segment.name] = [*history.seconds.get(segment.name, []), elapsed / max(1, taken)]
        history.measuring = now - (now if self.started_at is None else self.started_at) - self.rested
        ends = self.segments[0].ends
        history.warm_step = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else 0.0
        return history

    def end(self, history: History) -> None:
        """The segment is over, with this history: what it switched on is off."""
        if self.segment is not None:
            self.segment.leave()
        vars(self.history).update(vars(history))

    def upcoming(self) -> Segment | None:
        """The program's next segment; None where it is over."""
        return next(self._program, None)

    def begin(self, segment: Segment, now: float) -> None:
        """A segment begins. The turn itself is no part of a step."""
        self.segment, self._steps, self._begun, self._aside = segment, 0, now, None
        settle, is_baseline = segment.settle, segment.is_baseline
        self.segments.append(RawSegment(name=segment.name, is_baseline=is_baseline, began=now, settle=settle))

    def forked(self) -> None:
        """This is a forked child now: it starts over."""
        self.segments = [RawSegment(name=WARM_UP)]
        self.first_step_at = self.started_at = self.segment = None
