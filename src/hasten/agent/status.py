"""What a launch's parent sees of this process, and how the process ends once its window is full."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from time import perf_counter
from typing import get_args

from hasten.agent.segments import History
from hasten.agent.steps import Boundary
from hasten.protocol import EndedBy, State, Status, write

PERIOD = 1.0  # seconds; a status costs half a millisecond
STATES: tuple[State, ...] = get_args(State)


class StatusFile:
    """The status of one process."""

    def __init__(self, folder: Path, history: History, boundary: Boundary) -> None:
        self._folder, self._history, self._boundary = folder, history, boundary
        self._state: State = STATES[0]
        self._ended_by: EndedBy | None = None
        self._written_at = 0.0
        self.write()

    def reach(self, state: State, *, ended_by: EndedBy | None = None) -> None:
        """Write at once that a state is reached; a state behind the present one is no news."""
        if STATES.index(state) > STATES.index(self._state):
            self._state, self._ended_by = state, ended_by
            self.write()

    def due(self, now: float) -> bool:
        """Whether the last status was written a while ago."""
        return now - self._written_at >= PERIOD

    def write(self) -> None:
        """Write the counts as they are now."""
        self._written_at = perf_counter()
        status = Status(
            state=self._state,
            num_steps=self._history.num_steps,
            seconds=self._history.measuring,
            num_backwards=self._boundary.num_backwards,
            ended_by=self._ended_by,
        )
        with contextlib.suppress(OSError):
            write(status, self._folder)

    def forked(self) -> None:
        """This is a forked child now: it has only imported."""
        self._state, self._ended_by, self._written_at = STATES[0], None, 0.0


WAIT_FOR_END = 15.0  # seconds
LAST_MOMENT = 0.1  # seconds


def let_threads_end() -> None:
    """Of several ranks, wait a moment for gloo's threads before Python ends.

    After an exchange they drop what was exchanged, for which they need Python. While it ends they get it no more, and torch
    then ends the process by SIGABRT.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        time.sleep(LAST_MOMENT)


def leave(launcher: int | None) -> None:
    """End this process and its children without running what comes after the training loop."""
    import multiprocessing

    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    deadline = time.monotonic() + 2.0
    for child in children:
        child.join(timeout=max(0.05, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if launcher is not None and os.getppid() != launcher:
        # A shell or a launcher waits for this process, and would continue with its next line: hasten ends them first.
        time.sleep(WAIT_FOR_END)
    os._exit(0)
