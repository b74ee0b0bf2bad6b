"""Track how many bytes the stores of a folder take, across all processes that write there.

A store is a folder with the name pattern and the marker file of a store; nothing else in the parent folder is ever removed. A
small file records the total of all stores and is updated under a lock; if it is missing, damaged, or too high because processes
died, the files are counted again. While a store is open, no process removes it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hasten.data.layout.sharing import close, locked

BLOCK = 4096
ENTRY = 256  # bytes of a folder that a file's name may take
STALE = 3600.0  # seconds after which a temporary file belongs to a dead process, and the bytes are counted again
RETRY_SECONDS = 60.0  # seconds without another attempt after there was no room
LEDGER = "ledger"  # the file's name
STORE, MARK = re.compile(r"[0-9a-f]{32}"), "hasten-store"  # the name of a store, and the marker file in each
TEMPORARY_PREFIX = "."  # prefix of the name of a file being written
OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_COUNT = struct.Struct("<QdI")  # bytes, when they were counted, checksum


class Ledger:
    """Reserves space for a store, `folder`, among the others in its parent, at most `budget` bytes for all together.

    If they would take more, stores that no process has open are removed, the least recently used first.

    Raises:
        OSError: if the folder cannot be created or opened, or other users can write to it.
    """

    _descriptor = _held = -1

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder = folder
        self._budget = budget
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(folder.parent)
        self._held = _open_store(folder)
        with suppress(OSError):  # a read-only disk can still be read
            self._descriptor = os.open(folder.parent / LEDGER, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600)
            os.utime(folder)
        self._refused, self._full_until = 0, 0.0

    @property
    def num_bytes(self) -> int:
        """Bytes that all stores take; 0 if unknown."""
        if self._descriptor < 0:
            return 0
        with locked(self._descriptor):
            known = self._read()
            return 0 if known is None else known[0]

    def is_full(self, size: int) -> bool:
        """Whether a recent attempt found no room for `size` bytes."""
        return size >= self._refused and time.monotonic() < self._full_until

    def reserve(self, path: Path, size: int, *, wait: float = 0.0) -> bool:
        """Create a new file of `size` bytes; False if there is no room, or others reserve theirs for longer than `wait` seconds.

        The file has its full size from the start, so that any count includes it. Raises OSError if the disk fails.
        """
        if self._descriptor < 0:
            raise OSError(errno.EROFS, "the folder cannot be written", str(self.folder.parent))
        until = time.monotonic() + wait
        while True:
            with locked(self._descriptor) as acquired:
                if acquired:
                    return self._reserve(path, size)
            if time.monotonic() >= until:
                return False

    def _reserve(self, path: Path, size: int) -> bool:
        cost = _cost(size)
        used, counted = self._read() or (self._count(), time.time())
        if used + cost > self._budget and time.time() - counted > STALE:
            used, counted = self._count(), time.time()
        while used + cost > self._budget and (freed := self._remove_oldest()):
            used = max(0, used - freed)
        room = used + cost <= self._budget
        if room:
            _create(path, size)
        else:
            self._refused, self._full_until = size, time.monotonic() + RETRY_SECONDS
        self._write(used + cost * room, counted)
        return room

    def discard(self, path: Path) -> None:
        """Remove a file, if it can be removed."""
        try:
            size = os.lstat(path).st_size
            path.unlink()
        except OSError:
            return
        with locked(self._descriptor) as acquired:
            known = self._read()
            if acquired and known is not None:
                self._write(max(0, known[0] - _cost(size)), known[1])

    def close(self) -> None:
        """Close the store in this process."""
        for descriptor in (self._descriptor, self._held):
            if descriptor >= 0:
                close(descriptor)
        self._descriptor = self._held = -1

    def __del__(self) -> None:
        self.close()

    def _read(self) -> tuple[int, float] | None:
        return _count_in(_read_start(self._descriptor, _COUNT.size))

    def _write(self, used: int, counted: float) -> None:
        data = _COUNT.pack(used, counted, 0)[:-4]
        _write_start(self._descriptor, data + struct.pack("<I", zlib.crc32(data)))

    def _count(self) -> int:
        """Count the bytes of all stores, after removing temporary files that dead processes left."""
        total = 2 * BLOCK
        for folder in self._stores():
            total += BLOCK
            for entry in _entries(folder):
                try:
                    status = entry.stat(follow_symlinks=False)
                    is_old = entry.name.startswith(TEMPORARY_PREFIX) and time.time() - status.st_mtime > STALE
                    if is_old and not _is_locked(entry.path):  # the clock may have jumped
                        os.unlink(entry.path)
                    else:
                        total += _cost(status.st_size)
                except OSError:
                    continue  # removed in the meantime
        return total

    def _remove_oldest(self) -> int:
        """Remove the least recently used store that no process has open; return its bytes, or 0 if there is none."""
        others = [folder for folder in self._stores() if folder != self.folder]
        for folder in sorted(others, key=lambda folder: folder.stat().st_mtime):
            freed = _remove(folder)
            if freed:
                return freed
        return 0

    def _stores(self) -> list[Path]:
        entries = _entries(self.folder.parent)
        named = (Path(e.path) for e in entries if STORE.fullmatch(e.name) and e.is_dir(follow_symlinks=False))
        return [folder for folder in named if (folder / MARK).is_file()]


def bytes_of_stores(parent: Path) -> int:
    """Return the bytes that all stores in a folder take; 0 if unknown."""
    try:
        known = _count_in((parent / LEDGER).read_bytes())
    except OSError:
        return 0
    return 0 if known is None else known[0]


def _count_in(data: bytes) -> tuple[int, float] | None:
    """Return the bytes, and when they were counted; None if the file is damaged."""
    if len(data) < _COUNT.size:
        return None
    used, counted, checksum = _COUNT.unpack(data[: _COUNT.size])
    return (used, counted) if checksum == zlib.crc32(data[: _COUNT.size - 4]) else None


def is_ours(status: os.stat_result) -> bool:
    """Whether a file belongs to this user. Files that another user may have written are not trusted."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def check_private(folder: Path) -> None:
    """Raise PermissionError if other users can write to a folder."""
    status = os.stat(folder)
    if not is_ours(status) or (os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise PermissionError(f"{folder} belongs to another user, or other users can write to it")


def _open_store(folder: Path) -> int:
    """Create the folder and hold it open, so that other processes do not remove it; released when the process exits."""
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    with suppress(OSError):  # a read-only disk can still be read
        (folder / MARK).touch()
    if sys.platform == "win32":
        return -1
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.stat(folder)  # raises if it was removed just before
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove(folder: Path) -> int:
    """Remove a store and return its bytes; 0 if a process has it open."""
    if sys.platform == "win32":
        return 0
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        freed = BLOCK + sum(_cost(entry.stat(follow_symlinks=False).st_size) for entry in _entries(folder))
        shutil.rmtree(folder)
        return freed
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def _is_locked(path: str) -> bool:
    """Whether a process is writing a temporary file."""
    if sys.platform == "win32":
        return False
    descriptor = os.open(path, os.O_RDONLY | OPEN_FLAGS)
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def lock_temporary(descriptor: int) -> None:
    """Lock a temporary file while it is open, so that no process removes it as a dead process's."""
    if sys.platform != "win32":
        _locked(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock a file until it is closed; False if another process holds the lock."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _create(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o600)
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


if sys.platform == "win32":

    def _read_start(descriptor: int, size: int) -> bytes:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, size)

    def _write_start(descriptor: int, data: bytes) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, data)

else:
    # An inherited descriptor shares its position with the parent's.

    def _read_start(descriptor: int, size: int) -> bytes:
        return os.pread(descriptor, size, 0)

    def _write_start(descriptor: int, data: bytes) -> None:
        os.pwrite(descriptor, data, 0)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def _cost(size: int) -> int:
    return -(-size // BLOCK) * BLOCK + ENTRY
