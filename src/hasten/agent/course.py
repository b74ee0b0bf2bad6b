"""Which stretch of a run is on: the warm-up, then the program's segments one after another."""

from __future__ import annotations

from collections.abc import Callable

from hasten.agent.programs import History, Program, Segment
from hasten.raw_run import WARM_UP, RawSegment

WARM_STEPS = 3
WARM_SECONDS = 1.0
LONGEST_WARM_UP = 15.0  # seconds; slow steps are worth more than a long warm-up
PATIENCE = 2.0  # seconds, or four times its length, after which a segment ends with fewer steps than it wants


class Course:
    """The segments of one process, and the ends of its steps in them."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.segments = [RawSegment(name=WARM_UP)]
        self.first_step_at: float | None = None
        self.started_at: float | None = None  # when the warm-up ended
        self.rested = 0.0  # seconds since then in which others had their turn
        self.segment: Segment | None = None
        self.cold: Callable[[], bool] = lambda: False  # the warm-up goes on while it is, up to `longest_warm_up`
        self.longest_warm_up = LONGEST_WARM_UP
        self.catch_up: Callable[[float], float] = lambda now: now  # at both ends of a stretch: wait for the device
        self._program: Program = iter(())
        self._begun = 0.0
        self._steps = 0  # of this segment

    def follow(self, program: Program) -> None:
        """Set what to do once the warm-up is over."""
        self._program = program

    @property
    def num_steps(self) -> int:
        """Steps that have ended, those of the warm-up among them."""
        return sum(len(segment.ends) for segment in self.segments)

    def step(self, now: float) -> bool:
        """A step has ended; True when its stretch is over with it."""
        if self.first_step_at is None:
            self.first_step_at = now
        segment = self.segment
        if segment is None:
            over, begins = self._is_warm(now), False
        else:
            self._steps += 1
            self.history.num_steps += 1
            over, begins = self._is_full(segment, now), self._steps == segment.settle
        if over or begins:
            now = self.catch_up(now)
        self.segments[-1].ends.append(now)
        if segment is None and over:
            self.started_at = now
        if begins:
            self._begun = now
        return over

    def _is_full(self, segment: Segment, now: float) -> bool:
        taken, elapsed = self._steps - segment.settle, now - self._begun
        if taken < 1 or elapsed < segment.min_seconds:
            return False
        return taken >= segment.min_steps or elapsed >= max(PATIENCE, 4 * segment.min_seconds)

    def _is_warm(self, now: float) -> bool:
        assert self.first_step_at is not None
        done, elapsed = self.num_steps + 1, now - self.first_step_at
        if self.cold() and elapsed < self.longest_warm_up:
            return False
        return (done > WARM_STEPS and elapsed >= WARM_SECONDS) or (done >= 2 and elapsed >= LONGEST_WARM_UP)

    def warm_step(self) -> float:
        """Mean seconds of the warm-up's steps after the first."""
        ends = self.segments[0].ends
        return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else 0.0

    def end(self, now: float) -> None:
        """The stretch is over: its mean step goes into the history, and what it switched on is off."""
        assert self.started_at is not None
        segment = self.segment
        if segment is not None:
            mean = (now - self._begun) / max(1, self._steps - segment.settle)
            self.history.seconds.setdefault(segment.name, []).append(mean)
            segment.leave()
        self.history.measuring = now - self.started_at - self.rested

    def upcoming(self) -> Segment | None:
        """The program's next segment; None where it is over."""
        return next(self._program, None)

    def begin(self, segment: Segment, now: float) -> None:
        """A segment begins. The turn itself is no part of a step."""
        self.segment, self._steps, self._begun = segment, 0, now
        settle, is_baseline = segment.settle, segment.is_baseline
        self.segments.append(RawSegment(name=segment.name, is_baseline=is_baseline, began=now, settle=settle))

    def forked(self) -> None:
        """This is a forked child now: it starts anew."""
        self.segments = [RawSegment(name=WARM_UP)]
        self.first_step_at = self.started_at = self.segment = None
