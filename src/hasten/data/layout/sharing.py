"""Files without a name that processes share, and locks on them: nothing is left when the last process is gone.

On Linux such a file is a memfd: it lies in memory, and the size of /dev/shm does not bound it. Elsewhere it is a temporary
file whose name is taken away at once. On Windows, where it cannot be handed on, each process gets an empty one.

Under a lock is one process, and in it one thread, at a time. Nobody waits long: what is done under a lock here (filling a
cache) can be left undone. The kernel releases a record lock when its holder dies, however it dies, so a killed process never
blocks the others.
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
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

_FAR = 1 << 40  # a byte that holds no data: a locked byte cannot be read on Windows
_TRIES = 20
_BETWEEN_TRIES = 0.0005  # seconds; a lock is held for a few microseconds

# Record locks do not tell the threads of a process apart. Reentrant, for garbage collection can close a file anywhere,
# under a lock, too. A fork waits until no other thread holds one, or the child would inherit a lock nobody releases.
_threads = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_threads.acquire, after_in_parent=_threads.release, after_in_child=_threads.release)


@contextmanager
def locked(descriptor: int) -> Generator[bool, None, None]:
    """Hold the lock for the block; False where others hold it for long: then do nothing."""
    with _threads:
        ours = any(_try(descriptor, attempt) for attempt in range(_TRIES))
        try:
            yield ours
        finally:
            if ours:
                unlock(descriptor)


def close(descriptor: int) -> None:
    """Close a file that is locked now and then: another descriptor of it may hold the lock, and would lose it."""
    with _threads:
        os.close(descriptor)


def _try(descriptor: int, attempt: int) -> bool:
    if attempt:
        time.sleep(_BETWEEN_TRIES)
    return lock(descriptor)


if sys.platform == "win32":
    import msvcrt

    def lock(descriptor: int, place: int = 0) -> bool:
        """Lock a place of a file for this process, until it unlocks it or ends; False where another has it."""
        os.lseek(descriptor, _FAR + place, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(descriptor: int, place: int = 0) -> None:
        """Give a place up."""
        os.lseek(descriptor, _FAR + place, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def lock(descriptor: int, place: int = 0) -> bool:
        """Lock a place of a file for this process, until it unlocks it or ends; False where another has it.

        Closing any descriptor of the file unlocks all its places, so a process keeps one descriptor of a file.
        """
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _FAR + place)
        except OSError:
            return False
        return True

    def unlock(descriptor: int, place: int = 0) -> None:
        """Give a place up."""
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, _FAR + place)


PAGE = mmap.ALLOCATIONGRANULARITY
_PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


class SharedFile:
    """A file of zeros, `size` bytes long, of which only what is written takes memory.

    Usable after a fork, and picklable to a process while that is started. Raises OSError where it cannot be had.
    """

    descriptor = -1
    _sign: socket.socket | None = None

    def __init__(self, size: int, *, descriptor: int | None = None) -> None:
        self.descriptor = nameless() if descriptor is None else descriptor
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

    def keep(self, sign: socket.socket) -> None:
        """Keep what tells others of the file for as long as the file."""
        self._sign = sign

    @property
    def num_bytes(self) -> int:
        """Bytes in use, by the kernel's count."""
        return os.fstat(self.descriptor).st_blocks * 512

    def map(self, size: int) -> mmap.mmap:
        """The first bytes, shared: what is written is seen by all."""
        return mmap.mmap(self.descriptor, size)

    def free(self, start: int, end: int) -> None:
        """Give the memory of the whole pages between two offsets back; they read as zeros thereafter."""
        start, end = round_up(start), round_up(end)
        if end > start and sys.platform == "linux":
            # Not by a mapping's madvise: to close a mapping unlocks the file for the whole process.
            libc = ctypes.CDLL(None)
            libc.fallocate(self.descriptor, _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(end - start))

    def close(self) -> None:
        """Give the file up. What is mapped stays until nothing refers to it."""
        if self._sign is not None:
            self._sign.close()
        if self.descriptor >= 0:
            close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


def round_up(size: int) -> int:
    """To whole pages."""
    return -(-size // PAGE) * PAGE


def write_at(descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
    """Write pieces one after the other. Raises OSError where the file cannot take them all."""
    for piece in pieces:
        left = memoryview(piece)
        while left.nbytes:
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written


def nameless(label: str = "hasten") -> int:
    """A descriptor of a new file without a name; `label` is what /proc shows."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
