"""How much of a piece of work holds Python's global interpreter lock.

In: a function. Out: a share, 0..1. Refuses to know what the function does.

A second thread counts as fast as it can, and so takes the lock whenever it is free. What it counts less than when it is
alone is what the work held. On a busy machine it counts less as well: then the share comes out too large, which errs
towards processes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

SECONDS = 0.03  # of each of the two measurements
SWITCH_SECONDS = 2e-5  # between the counter's offers to give the lock back; Python's own 5 ms are too coarse


def has_gil() -> bool:
    """Whether this Python has such a lock, and uses it."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return True if enabled is None else enabled()


def held_share(work: Callable[[], object]) -> float:
    """The share of the time of `work` for which it holds the lock. Calls it for some hundredths of a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        work()  # the first call may import, or open
        with _Counter() as counter:
            alone = counter.rate(lambda: time.sleep(SECONDS / 10))
            beside = counter.rate(work)
    finally:
        sys.setswitchinterval(before)
    return min(1.0, max(0.0, 1.0 - beside / max(alone, 1e-9)))


class _Counter:
    def __enter__(self) -> _Counter:
        self._count = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="hasten-gil", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            self._count += 1

    def rate(self, work: Callable[[], object]) -> float:
        """Counts a second while `work` is done again and again."""
        count, began = self._count, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            work()
        return (self._count - count) / (time.perf_counter() - began)
