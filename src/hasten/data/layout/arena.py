"""Memory that a loader and its workers share; nothing of it is left when the last of them is gone.

On Linux it is a file without a name (memfd_create): no process can leave it behind, and the size of /dev/shm, 64 MB in
many containers, does not bound it; the memory limit does. Room is reserved before it is written to, so memory that is
not there is an OSError here, and not a bus error in a worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from typing import NamedTuple

from hasten.data.layout.sharing import PAGE, SharedFile, round_up


class Place(NamedTuple):
    """A stretch of an arena, in bytes."""

    offset: int
    size: int


LEAST = 1 << 20  # bytes: with less, nothing is worth laying there


class Arena:
    """Up to `capacity` bytes, or as many as a limit leaves, of which only those take memory that were reserved.

    Shared: inherited by a fork, picklable to a process while that is started, and written to by both. Otherwise it is
    this process's own, and a fork has a copy.
    """

    def __init__(self, capacity: int, *, is_shared: bool = True) -> None:
        self.capacity = max(PAGE, capacity // PAGE * PAGE)
        self.size = 0
        """Reserved so far."""
        while True:
            try:
                self._file = SharedFile(self.capacity) if is_shared else None
                self._open()
                return
            except OSError:
                # A limit of the shell's or of a batch system's, on addresses or on the size of files.
                if self.capacity < 2 * LEAST:
                    raise
                self.capacity = self.capacity // 2 // PAGE * PAGE

    def _open(self) -> None:
        self._map = _private(self.capacity) if self._file is None else self._file.map(self.capacity)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def is_shared(self) -> bool:
        """Whether other processes can map it."""
        return self._file is not None

    def reserve(self, size: int) -> Place:
        """More of it, in whole pages. Raises OSError where there is no more."""
        size = round_up(size)
        if self.size + size > self.capacity:
            raise OSError(f"more than {self.capacity} bytes")
        if self._file is not None and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.descriptor, self.size, size)
        place = Place(self.size, size)
        self.size += size
        return place

    def view(self, place: Place) -> memoryview:
        """The memory of a place, writable."""
        return memoryview(self._map)[place.offset : place.offset + place.size]

    def __getstate__(self) -> tuple[int, SharedFile | None]:
        assert self._file is not None
        return self.capacity, self._file

    def __setstate__(self, state: tuple[int, SharedFile | None]) -> None:
        self.capacity, self._file = state
        self.size = self.capacity  # to reserve is the parent's affair
        self._open()


def _private(capacity: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, capacity)
    memory = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
