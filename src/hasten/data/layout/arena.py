"""Memory shared by a loader and its workers, released when the last of them exits.

On Linux it is an anonymous file (memfd_create): no process can leave it behind, and it is bounded by the memory limit, not by
the size of /dev/shm, which is 64 MB in many containers. Space is reserved before it is written, so a lack of memory is an
OSError here and not a bus error in a worker.
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
    """A segment of an arena, in bytes."""

    offset: int
    size: int


MIN_CAPACITY = 1 << 20  # bytes: a smaller arena is not worth having


class Arena:
    """Up to `capacity` bytes, or fewer if a limit requires it; only reserved bytes take memory.

    A shared arena is inherited by a fork and can be pickled to a process being started; both can write to it. Otherwise the
    arena is private to this process, and a fork gets a copy.
    """

    def __init__(self, capacity: int, *, is_shared: bool = True) -> None:
        self.capacity = max(PAGE, capacity // PAGE * PAGE)
        self.size = 0
        """Bytes reserved so far."""
        while True:
            try:
                self._file = SharedFile(self.capacity) if is_shared else None
                self._open()
                return
            except OSError:
                # A limit set by the shell or a batch system, on address space or on file size.
                if self.capacity < 2 * MIN_CAPACITY:
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
        """Reserve more bytes, in whole pages. Raises OSError if the arena or the memory is exhausted."""
        size = round_up(size)
        if self.size + size > self.capacity:
            raise OSError(f"more than {self.capacity} bytes")
        if self._file is not None and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.descriptor, self.size, size)
        place = Place(self.size, size)
        self.size += size
        return place

    def view(self, place: Place) -> memoryview:
        """Return the memory of a place, writable."""
        return memoryview(self._map)[place.offset : place.offset + place.size]

    def __getstate__(self) -> tuple[int, SharedFile | None]:
        assert self._file is not None
        return self.capacity, self._file

    def __setstate__(self, state: tuple[int, SharedFile | None]) -> None:
        self.capacity, self._file = state
        self.size = self.capacity  # only the parent reserves
        self._open()


def _private(capacity: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, capacity)
    memory = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
