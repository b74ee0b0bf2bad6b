"""The spans that hooks record in one process, in the order in which they end.

Standard library only. Spans of the training thread are properly nested; other threads are not marked.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING

from hasten.agent.frames import user_place
from hasten.protocol import Phase
from hasten.raw_run import Detail, Place, SampledPhase

if TYPE_CHECKING:
    from hasten.agent.device_clock import DeviceClock  # imports torch

BETWEEN: SampledPhase = "between"  # no span is open

# A run of 60 s at 2 ms a step makes about 300,000 spans; beyond that the window is closed.
MOST_SPANS = 600_000


class Marks:
    """The spans of one process and the places they came from."""

    def __init__(self, *, now: Callable[[], float] = perf_counter) -> None:
        self.now = now
        self.spans: list[tuple[str, float, float, Detail]] = []  # Spans, when all is over
        self.open: list[Phase] = []  # kinds of the spans that are open now, outermost first
        self.between: SampledPhase = (
            BETWEEN  # what the time between two spans belongs to: "loss" and "validation" have no call
        )
        self.full = False  # False: only what uninstrumented segments need
        self.by_optimizer = False  # steps end with an optimizer's: uninstrumented segments need no backward
        self.thread = get_ident()
        self.reading = False  # in a call that is marked as reading from the device, or copying to it
        self.device: DeviceClock | None = None  # where the script trains on a GPU
        self.places: dict[Place, int] = {}
        self.first_place: dict[Phase, int] = {}

    def here(self) -> bool:
        """Whether this is the training thread."""
        return get_ident() == self.thread

    def phase(self) -> SampledPhase:
        """What the training thread is in."""
        return self.open[-1] if self.open else self.between

    def enter(self, kind: Phase) -> float:
        """Open a span; returns its start."""
        self.open.append(kind)
        if self.device is not None and self.full:
            self.device.enter()
        return self.now()

    def leave(self, kind: Phase, start: float, detail: Detail = None) -> None:
        """Close the span that was opened last and put it down."""
        self.open.pop()
        if self.device is not None and self.full:
            self.device.leave(kind, start)
        self.add(kind, start, detail)

    def add(self, kind: str, start: float, detail: Detail = None, *, end: float | None = None) -> None:
        """Put down a span that began at `start`, and ends now unless its end is given."""
        if len(self.spans) < MOST_SPANS:
            self.spans.append((kind, start, self.now() if end is None else end, detail))

    def place(self, depth: int) -> int:
        """Number of the user's line that is running, seen from `depth` calls above the caller; -1: none."""
        place = user_place(sys._getframe(depth + 1))  # pyright: ignore[reportPrivateUsage]
        if place is None:
            return -1
        return self.places.setdefault(place, len(self.places))

    def remember_place(self, kind: Phase, depth: int) -> None:
        """Keep the first place that a kind of span was entered from."""
        if kind not in self.first_place:
            self.first_place[kind] = self.place(depth + 1)


def spanned(
    marks: Marks,
    kind: Phase,
    function: Callable[..., object],
    *,
    detail: Callable[[], Detail] | None = None,
    always: bool = False,
) -> Callable[..., object]:
    """Wrap a function so that its outermost call is a span of `kind`; `always`: in uninstrumented segments too."""

    @functools.wraps(function)
    def call(*arguments: object, **settings: object) -> object:
        if not (marks.full or always) or kind in marks.open or not marks.here():
            return function(*arguments, **settings)
        note = detail() if detail else None
        marks.remember_place(kind, 1)
        start = marks.enter(kind)
        try:
            return function(*arguments, **settings)
        finally:
            marks.leave(kind, start, note)

    return call


def seconds_per_mark() -> float:
    """What putting down one span costs here: the least of five means over a thousand."""
    marks = Marks()
    means: list[float] = []
    for _ in range(5):
        begin = perf_counter()
        for _ in range(1000):
            marks.leave("forward", marks.enter("forward"))
        means.append((perf_counter() - begin) / 1000)
    return min(means)
