"""What this process is doing, for the parent to read at any time.

In: a state, and counts. Out: one small file in the run's folder, `status-<pid>`. Refuses to write often.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from time import perf_counter

PERIOD = 1.0  # seconds; a line costs half a millisecond
STATES = ("imported", "loading", "warming up", "measuring", "done")  # in this order, never back


class Status:
    """The state of one process: (state, steps, seconds measured, backwards, segment)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = 0
        self._told_at = 0.0

    def reach(self, state: str, counts: tuple[int, float, int, str]) -> None:
        """Tell at once that a state is reached; a state behind this one is no news."""
        number = STATES.index(state)
        if number > self._state:
            self._state = number
            self.tell(counts)

    def due(self, now: float) -> bool:
        """Whether the last line is a while ago."""
        return now - self._told_at >= PERIOD

    def tell(self, counts: tuple[int, float, int, str]) -> None:
        """Tell the counts."""
        self._told_at = perf_counter()
        line = json.dumps([STATES[self._state], *counts])
        with contextlib.suppress(OSError):
            # Replaced whole, for the parent reads at any time.
            scratch = self._folder / f".status-{os.getpid()}"
            scratch.write_text(line, encoding="utf-8")
            scratch.replace(self._folder / f"status-{os.getpid()}")

    def forked(self) -> None:
        """This is a forked child now: it has only imported."""
        self._state, self._told_at = 0, 0.0
