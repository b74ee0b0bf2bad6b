"""Counters of a cache, summed over all its processes, including those that have ended.

Each process has a row in shared memory, so no process waits for another. It holds its row with a lock that the kernel releases
when the process dies; the next process continues in the same row.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import numpy as np

from hasten.data.layout.sharing import SharedFile, lock

ROWS = 256  # concurrent processes; further ones are not counted


class Counters:
    """Sums by name. Usable after a fork, and picklable to a process being started."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._file = SharedFile(ROWS * 8 * len(names))
        self._open()

    def _open(self) -> None:
        self._columns = {name: column for column, name in enumerate(self._names)}
        shape = ROWS, len(self._names)
        self._rows = np.frombuffer(self._file.map(ROWS * 8 * len(self._names)), np.float64).reshape(shape)
        self._row: int | None = None
        self._owner = -1
        self._threads = threading.Lock()

    def __getstate__(self) -> tuple[tuple[str, ...], SharedFile]:
        return self._names, self._file

    def __setstate__(self, state: tuple[tuple[str, ...], SharedFile]) -> None:
        self._names, self._file = state
        self._open()

    def add(self, **amounts: float) -> None:
        """Add to the sums."""
        if self._owner != os.getpid():
            self._take_row()
        held, rows = self._row, self._rows  # another thread may close the counters
        if held is None:
            return
        row = rows[held]
        with self._threads:
            for name, amount in amounts.items():
                row[self._columns[name]] += amount

    def total(self, name: str) -> float:
        """Return the sum over all processes."""
        return float(self._rows[:, self._columns[name]].sum())

    def close(self) -> None:
        """Close the shared memory in this process. The sums can still be read."""
        self._rows = self._rows.copy()
        self._row, self._owner = None, os.getpid()
        self._file.close()

    def _take_row(self) -> None:
        # A fork copies the parent's lock, possibly held by a thread that does not exist in the child.
        self._threads = threading.Lock()
        rows = range(1, ROWS)
        self._row = next((row for row in rows if lock(self._file.descriptor, row)), None)
        self._owner = os.getpid()
