"""Anonymous files shared by processes, and locks on them; nothing is left when the last process exits.

On Linux such a file is a memfd: it is in memory, and the size of /dev/shm does not bound it. Elsewhere it is a temporary file
that is unlinked at once. On Windows, where it cannot be passed on, each process gets an empty one.

A lock admits one process, and in it one thread, at a time. No one waits long: work done under a lock here (filling a cache)
can be skipped. The kernel releases a record lock when its holder dies for whatever reason, so a killed process never blocks
the others.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

_FAR = 1 << 40  # offset of a byte that holds no data: a locked byte cannot be read on Windows
_TRIES = 20
_BETWEEN_TRIES = 0.0005  # seconds; a lock is held for a few microseconds

# Record locks do not distinguish the threads of a process. Reentrant, because garbage collection can close a file anywhere,
# even under a lock. A fork waits until no other thread holds a lock, or the child would inherit one that is never released.
_threads = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_threads.acquire, after_in_parent=_threads.release, after_in_child=_threads.release)


@contextmanager
def locked(descriptor: int) -> Generator[bool, None, None]:
    """Hold the lock for the block; yields False if others hold it for too long: then skip the work."""
    with _threads:
        acquired = any(_try(descriptor, attempt) for attempt in range(_TRIES))
        try:
            yield acquired
        finally:
            if acquired:
                unlock(descriptor)


def close(descriptor: int) -> None:
    """Close a file that is sometimes locked: waits, because closing would release a lock held by another descriptor."""
    with _threads:
        os.close(descriptor)


def _try(descriptor: int, attempt: int) -> bool:
    if attempt:
        time.sleep(_BETWEEN_TRIES)
    return lock(descriptor)


if sys.platform == "win32":
    import msvcrt

    def lock(descriptor: int, place: int = 0) -> bool:
        """Lock a byte of a file until this process unlocks it or exits; False if another process holds it."""
        os.lseek(descriptor, _FAR + place, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(descriptor: int, place: int = 0) -> None:
        """Unlock the byte."""
        os.lseek(descriptor, _FAR + place, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def lock(descriptor: int, place: int = 0) -> bool:
        """Lock a byte of a file until this process unlocks it or exits; False if another process holds it.

        Closing any descriptor of the file releases all its locks, so a process uses one descriptor per file.
        """
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _FAR + place)
        except OSError:
            return False
        return True

    def unlock(descriptor: int, place: int = 0) -> None:
        """Unlock the byte."""
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, _FAR + place)


PAGE = mmap.ALLOCATIONGRANULARITY
_PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


class SharedFile:
    """A sparse, zero-filled file of `size` bytes; only what is written takes memory.

    Usable after a fork, and picklable to a process being started. Raises OSError if it cannot be created.
    """

    descriptor = -1
    _announcement: socket.socket | None = None

    def __init__(self, size: int, *, descriptor: int | None = None) -> None:
        self.descriptor = anonymous_file() if descriptor is None else descriptor
        if os.fstat(self.descriptor).st_size < size:
            os.ftruncate(self.descriptor, size)

    def __getstate__(self) -> tuple[int, Any]:
        size = os.fstat(self.descriptor).st_size
        if sys.platform == "win32":
            return size, None
        from multiprocessing.reduction import DupFd

        return size, DupFd(self.descriptor)

    def __setstate__(self, state: tuple[int, Any]) -> None:
        size, handed_on = state
        self.__init__(size, descriptor=handed_on and handed_on.detach())

    def hold_socket(self, announcement: socket.socket) -> None:
        """Keep open the socket that announces the file to others, for as long as the file is open."""
        self._announcement = announcement

    @property
    def num_bytes(self) -> int:
        """Bytes in use, as counted by the kernel."""
        return os.fstat(self.descriptor).st_blocks * 512

    def map(self, size: int) -> mmap.mmap:
        """Map the first `size` bytes, shared: every process sees what is written."""
        return mmap.mmap(self.descriptor, size)

    def free(self, start: int, end: int) -> None:
        """Release the memory of the whole pages between two offsets; they read as zeros afterwards."""
        start, end = round_up(start), round_up(end)
        if end > start and sys.platform == "linux":
            # Not through a mapping's madvise: closing a mapping unlocks the file for the whole process.
            libc = ctypes.CDLL(None)
            libc.fallocate(self.descriptor, _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(end - start))

    def close(self) -> None:
        """Close the file. Mapped memory stays until nothing refers to it."""
        if self._announcement is not None:
            self._announcement.close()
        if self.descriptor >= 0:
            close(self.descriptor)
            self.descriptor = -1

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():  # then the names of this module may be gone already, and the system closes the file
            self.close()


def round_up(size: int) -> int:
    """Round up to whole pages."""
    return -(-size // PAGE) * PAGE


def write_at(descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
    """Write the pieces one after the other, from `offset`. Raises OSError if they do not fit."""
    for piece in pieces:
        left = memoryview(piece)
        while left.nbytes:
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written


def anonymous_file(label: str = "hasten") -> int:
    """Return a descriptor of a new anonymous file; `label` is what /proc shows."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
