"""File locks: one process, and in it one thread, at a time.

Nobody waits long: what is done under a lock here (filling a cache) can be left undone. The kernel releases a record lock
when its holder dies, however it dies, so a killed process never blocks the others.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

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
