"""Two launches of a comparison take turns: while one works, the other stands still.

In: a folder with two pipes. Out: this process asks before each of its segments, and goes on when it is told to. Refuses
to go on when nobody is there to tell.

Between the asking and the answer the parent stops the whole process group, so that no worker fetches ahead meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from time import perf_counter

from hasten.agent.leaving import leave
from hasten.protocol import TURN_ASKS, TURN_TOLD


class Turns:
    """The turns of the one process of a launch that is measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipes: tuple[int, int] | None = None

    def wait(self) -> float:
        """Seconds until it was this process's turn."""
        began = perf_counter()
        told = b""
        with contextlib.suppress(OSError):  # nobody at the other end
            self._pipes = self._pipes or self._open()
            os.write(self._pipes[0], b".")
            told = os.read(self._pipes[1], 1)
        if not told:  # hasten is gone
            leave(None)
        return perf_counter() - began

    def _open(self) -> tuple[int, int]:
        """Both pipes. Raises OSError when hasten is gone: to open them without O_NONBLOCK would wait for it for ever."""
        asks = os.open(self._folder / TURN_ASKS, os.O_WRONLY | os.O_NONBLOCK)
        told = os.open(self._folder / TURN_TOLD, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(told, True)
        return asks, told
