"""Seconds, CPU seconds and bytes of the stages of loading, in the process that does the work.

Totals are exclusive: a stage does not count the stages inside it. While no batch is timed a call costs one comparison.
"""

from __future__ import annotations

import functools
from builtins import open as open_plain  # before anybody patches it
from collections.abc import Callable
from threading import get_ident, get_native_id
from time import perf_counter, thread_time

from hasten.protocol import StageName

Function = Callable[..., object]
Key = tuple[StageName, str]  # stage, library or transform


def run_delay() -> float | None:
    """Seconds that this thread was ready to run and had no core, so far; None if the kernel does not report it."""
    try:
        with open_plain(f"/proc/self/task/{get_native_id()}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class Totals:
    """What one stage has taken so far."""

    __slots__ = ("calls", "cpu", "num_bytes", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.cpu = 0.0
        self.num_bytes = 0


class StageClock:
    """Times nested stages; each gets what its inner stages did not take."""

    def __init__(self) -> None:
        self.thread: int | None = None  # the thread whose batch is being timed; None: nothing is
        self.totals: dict[Key, Totals] = {}
        self._open: list[list[float]] = []  # start, CPU start, and what inner stages took of both
        self._kinds: list[str] = []

    def begin(self) -> None:
        """Start timing this thread's batch."""
        self.totals = {}
        self._open, self._kinds = [], []
        self.thread = get_ident()

    def end(self) -> dict[Key, Totals]:
        """Stop timing; return the batch's totals."""
        self.thread = None
        return self.totals

    @property
    def active(self) -> bool:
        """Whether a batch of the calling thread is being timed."""
        return self.thread is not None and self.thread == get_ident()

    def is_open(self, stage: StageName) -> bool:
        """Whether a stage of this name is being timed now."""
        return stage in self._kinds

    def enter(self) -> None:
        """Open a stage; `leave` says which."""
        self._open.append([perf_counter(), thread_time(), 0.0, 0.0])

    def push(self, stage: StageName) -> None:
        """Open a stage whose name matters to stages within it."""
        self._kinds.append(stage)
        self.enter()

    def pop(self, key: Key, *, num_bytes: int = 0) -> None:
        """Close what `push` opened."""
        self._kinds.pop()
        self.leave(key, num_bytes=num_bytes)

    def leave(self, key: Key, *, num_bytes: int = 0) -> None:
        """Close the innermost stage."""
        start, cpu_start, inner, inner_cpu = self._open.pop()
        seconds = perf_counter() - start
        cpu = thread_time() - cpu_start
        totals = self.totals.get(key)
        if totals is None:
            totals = self.totals[key] = Totals()
        totals.calls += 1
        totals.seconds += seconds - inner
        totals.cpu += cpu - inner_cpu
        totals.num_bytes += num_bytes
        if self._open:
            self._open[-1][2] += seconds
            self._open[-1][3] += cpu

    def timed(
        self,
        function: Function,
        stage: StageName,
        detail: str,
        *,
        size: Callable[[object], int] | None = None,
    ) -> Function:
        """Wrap a function as a stage. Within a stage of the same name it is part of that one."""
        key = (stage, detail)

        @functools.wraps(function)
        def call(*arguments: object, **settings: object) -> object:
            if self.thread is None or self.thread != get_ident() or stage in self._kinds:
                return function(*arguments, **settings)
            self.push(stage)
            result: object = None
            try:
                result = function(*arguments, **settings)
                return result
            finally:
                self.pop(key, num_bytes=size(result) if size is not None else 0)

        return call


clock = StageClock()  # one a process: the libraries' wrappers are the process's too
