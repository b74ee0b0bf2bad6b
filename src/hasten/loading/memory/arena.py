"""Memory that a loader and its workers share: nothing of it is left when the last of them is gone.

In: how much there may be. Out: stretches of it. Refuses to know what lies where.

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
import tempfile
import weakref
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

PAGE = mmap.ALLOCATIONGRANULARITY


class Place(NamedTuple):
    """A stretch of an arena, in bytes."""

    offset: int
    size: int


class Arena:
    """Up to `capacity` bytes, of which only those take memory that were reserved.

    Shared: inherited by a fork, picklable to a process while that is started, and written to by both. Otherwise it is
    this process's own, and a fork has a copy.
    """

    def __init__(self, capacity: int, *, is_shared: bool = True, descriptor: int | None = None) -> None:
        self.capacity = max(PAGE, capacity // PAGE * PAGE)
        self.is_shared = is_shared
        self.size = 0
        """Reserved so far."""
        self._descriptor = descriptor
        if is_shared and descriptor is None:
            self._descriptor = _nameless()
            os.ftruncate(self._descriptor, self.capacity)
        if self._descriptor is None:
            self._map = _private(self.capacity)
        else:
            weakref.finalize(self, os.close, self._descriptor).atexit = False
            self._map = mmap.mmap(self._descriptor, self.capacity)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def reserve(self, size: int) -> Place:
        """More of it, in whole pages. Raises OSError where there is no more."""
        size = -(-size // PAGE) * PAGE
        if self.size + size > self.capacity:
            raise OSError(f"more than {self.capacity} bytes")
        if self._descriptor is not None and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, self.size, size)
        place = Place(self.size, size)
        self.size += size
        return place

    def view(self, place: Place) -> memoryview:
        """The memory of a place, writable."""
        return memoryview(self._map)[place.offset : place.offset + place.size]

    def __getstate__(self) -> object:
        assert self._descriptor is not None
        return self.capacity, DupFd(self._descriptor)

    def __setstate__(self, state: Any) -> None:
        capacity, descriptor = state
        self.__init__(capacity, descriptor=descriptor.detach())


def _private(capacity: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, capacity)
    memory = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hasten", os.MFD_CLOEXEC)
    descriptor, name = tempfile.mkstemp(prefix="hasten-")
    os.unlink(name)
    return descriptor
