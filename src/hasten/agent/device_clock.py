"""Device seconds of the outermost spans, by events that no step waits for.

An event is asked whether it has happened, and asked again a step later if it has not; the device is never synchronized.
Events are recorded on the current stream at both ends of a span and taken from a pool; `elapsed_time` is read only after
`query()`, as PyTorch's documentation on CUDA semantics describes. A device whose events carry no time disables the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.devices import cuda
from hasten.protocol import Phase
from hasten.raw_run import DeviceSpan

if TYPE_CHECKING:
    from torch import Event

MOST_PENDING = 4096  # spans that wait for their events; beyond, the span is dropped and counted


@dataclass
class Pending:
    """A span that the device has still to pass."""

    kind: Phase
    start: float
    first: Event
    last: Event
    waited: bool = False


class DeviceClock:
    """Times outermost spans on the device."""

    def __init__(self, new_event: Callable[[], Event]) -> None:
        self.spans: list[DeviceSpan] = []
        self._new_event = new_event
        self._pool: list[Event] = []
        self._pending: deque[Pending] = deque()
        self._latest: Pending | None = None  # the span that ended last, while nothing came after it
        self._open: list[Event | None] = []
        self._has_ended = False  # the device has no events, or they carry no time

    def begin(self) -> None:
        """A segment begins: spans left open, by an error or by a segment's end, are not timed."""
        self._open.clear()

    def enter(self) -> None:
        """A span begins; only the outermost is timed, and nothing that goes into a graph."""
        event = None
        self._note_waiting()
        if not self._open and len(self._pending) < MOST_PENDING and not self._has_ended and not cuda.is_capturing():
            event = self._record()
        self._open.append(event)

    def leave(self, kind: Phase, start: float) -> None:
        """The span that began last ends; `start` is when it began on the host."""
        first = self._open.pop() if self._open else None
        last = self._record() if first is not None else None
        if first is not None and last is not None:
            self._latest = Pending(kind, start, first, last)
            self._pending.append(self._latest)

    def _note_waiting(self) -> None:
        latest, self._latest = self._latest, None
        if latest is not None and not cuda.is_capturing():
            latest.waited = latest.last.query()

    def _record(self) -> Event | None:
        if self._pool:
            event = self._pool.pop()
            try:
                event.record()
                return event
            except RuntimeError:
                pass  # it belongs to another device than the one in use now
        try:
            event = self._new_event()
            event.record()
        except RuntimeError:
            self._has_ended = True
            return None
        return event

    def poll(self) -> None:
        """Take down what the device has passed by now."""
        self._note_waiting()
        while self._pending and not cuda.is_capturing() and self._pending[0].last.query():
            one = self._pending.popleft()
            try:
                seconds = one.first.elapsed_time(one.last) / 1e3
                self.spans.append(DeviceSpan(one.kind, one.start, seconds, one.waited))
            except NotImplementedError:
                self._has_ended = True
                self._pending.clear()
                return
            except RuntimeError:
                continue  # the span began on one device and ended on another
            self._pool += [one.first, one.last]
