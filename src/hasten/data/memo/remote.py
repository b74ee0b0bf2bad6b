"""Remote objects on the local disk: downloaded whole, once per host, and held.

An object's record is a small file named after its address. It names the file that holds the bytes, whose own name contains the
identity of the content: ETag, time of change, size. The time of the record is when the object was last compared with the
server. A file is written under another name and renamed, so none is ever partial. Nothing is evicted to make room: the budget
is that of the values on disk, and counts what is being downloaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hasten.data.memo.counters import Counters
from hasten.data.memo.download import (
    ATTEMPTS,
    STALL_SECONDS,
    ShortReadError,
    Source,
    StoppedError,
    call,
    identity_of,
    of_this_process,
    retrying,
    source_of,
)
from hasten.data.memo.keys import key_of
from hasten.data.memo.ledger import OPEN_FLAGS, TEMPORARY_PREFIX, Ledger, is_ours

log = logging.getLogger("hasten")

LARGEST = 256 << 20  # bytes; a larger object may be one of which only parts are read
RECORD_BYTES = 128
LEDGER_SECONDS = 10.0  # to wait for other processes that reserve room
_SUFFIX, _FILE = re.compile(r"\.[A-Za-z0-9]{1,8}"), re.compile(r"[0-9a-f]{32}[.\w]{0,9}")


@dataclass(frozen=True)
class RemoteCounts:
    """Counts of remote objects that were opened, over all processes."""

    num_hits: int
    """Objects read from the disk."""
    num_downloads: int
    num_bytes: int
    """Bytes downloaded."""
    num_ahead: int
    """Downloads that were begun before the sample was asked for."""
    num_retries: int
    """Requests that failed or stalled, and were made again."""
    num_direct: int
    """Objects that were read directly: no room on the disk, no identity, too large, or failed."""


class Ahead(Protocol):
    """Who fetches objects before a sample asks for them."""

    def admit(self, size: int) -> AbstractContextManager[object]:
        """Wait until so many more bytes may be downloaded, and count them during the block."""
        ...

    def is_closed(self) -> bool:
        """Whether nothing is wanted any more."""
        ...


class _Record(NamedTuple):
    file: str
    size: int
    checked: float


class RemoteTier:
    """The remote objects on a host's disk. Picklable, and usable after a fork.

    Args:
        budget: bytes that all stores in the folder may take together.
        root: the folder of the stores.
    """

    def __init__(self, budget: int, root: Path) -> None:
        self.budget = budget
        self._root = root
        self._opened = time.time()
        """An object is compared with the server once after this."""
        self._counters = Counters(["hits", "downloads", "bytes", "ahead", "retries", "direct"])
        self._ledgers: dict[Source, Ledger] = {}
        self._refused: set[str] = set()
        """Objects without identity, and too large ones."""
        self._is_off = sys.platform == "win32"
        self.is_used = False
        """Whether this process has read an object from here."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_ledgers": {}}

    def open(self, fs: Any, path: str) -> str | None:
        """Return the path of the local file that holds an object; None if it must be read directly."""
        found = self.fetch(fs, path)
        if found is None:
            self._counters.add(direct=1)
            return None
        self.is_used = True
        self._counters.add(hits=1)
        return found

    def fetch(self, fs: Any, path: str, ahead: Ahead | None = None) -> str | None:
        """Return the local file of an object, after downloading it if it is not there yet.

        Args:
            fs: its file system.
            path: its path there.
            ahead: who asks before a sample does.

        Returns:
            The path; None if it cannot be held. No error is raised: reading it directly raises the user's own.
        """
        if self._is_off:
            return None
        try:
            ledger, name = self._ledger(fs, path), _name(path.encode(errors="surrogateescape"))
            found = self._checked(ledger, name)
            if found is not None or self._is_refused(ledger, name):
                return found
            with _sole(ledger.folder / f"{TEMPORARY_PREFIX}{name}.lock"):
                found = self._checked(ledger, name)  # by another process meanwhile
                return found or self._check(of_this_process(fs), path, ledger, name, ahead)
        except _DiskError as error:
            self._is_off = True
            log.warning("remote objects are read directly from here on: %s", error.__cause__)
        except Exception as error:
            if not isinstance(error, StoppedError):
                log.debug("%s is read directly: %r", path, error)
        return None

    def is_settled(self, fs: Any, path: str) -> bool:
        """Whether there is nothing to fetch: the object is here, or will not be held."""
        ledger, name = self._ledger(fs, path), _name(path.encode(errors="surrogateescape"))
        return self._checked(ledger, name) is not None or self._is_refused(ledger, name)

    def counts(self) -> RemoteCounts:
        """Return the counts so far; once closed, the last ones."""
        names = ("hits", "downloads", "bytes", "ahead", "retries", "direct")
        return RemoteCounts(*(int(self._counters.total(name)) for name in names))

    def close(self) -> None:
        """Close the folders in this process."""
        for ledger in self._ledgers.values():
            ledger.close()
        self._ledgers, self._is_off = {}, True
        self._counters.close()

    def _ledger(self, fs: Any, path: str) -> Ledger:
        """Return the store of a bucket or host: the unit that is removed when other data need the room."""
        source = source_of(fs, path)
        known = self._ledgers.get(source)
        if known is None:
            with _local():
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
                known = self._ledgers.setdefault(
                    source, Ledger(self._root / _name(b"remote " + repr(source).encode()), self.budget)
                )
        return known

    def _is_refused(self, ledger: Ledger, name: str) -> bool:
        """Whether the server need not be asked: the object is known not to be held, or there is no room for another."""
        return name in self._refused or (ledger.is_full(LARGEST) and _read(ledger, name) is None)

    def _checked(self, ledger: Ledger, name: str) -> str | None:
        """Return the file of an object that was compared with the server since this tier was opened."""
        known = _read(ledger, name)
        if known is None or known.checked < self._opened or not _is_whole(ledger, known):
            return None
        return f"{ledger.folder}/{known.file}"

    def _check(self, fs: Any, path: str, ledger: Ledger, name: str, ahead: Ahead | None) -> str | None:
        """Compare an object with the server, while its lock is held; download it if it is not here or has changed."""

        def ask(attempt: int) -> Any:
            return call(fs, "info", path, seconds=STALL_SECONDS * 2**attempt, stopped=_stop(ahead))

        current = identity_of(retrying(ask, on_retry=self._count_retry, stopped=_stop(ahead)))
        if current is None or current[1] > LARGEST:
            self._refused.add(name)
            return None
        new = _Record(key_of(name.encode(), current[0]).hex() + _suffix(path), current[1], 0.0)
        known = _read(ledger, name)
        if known is not None and known.file == new.file and _is_whole(ledger, new):
            with contextlib.suppress(OSError):  # a read-only disk: it is compared again
                os.utime(ledger.folder / name)
        else:
            with nullcontext() if ahead is None else ahead.admit(new.size):
                if not self._download(fs, path, ledger, name, new, _stop(ahead)):
                    return None
            self._counters.add(downloads=1, bytes=new.size, ahead=ahead is not None)
        return str(ledger.folder / new.file)

    def _count_retry(self) -> None:
        self._counters.add(retries=1)

    def _download(
        self, fs: Any, path: str, ledger: Ledger, name: str, new: _Record, stopped: Callable[[], bool]
    ) -> bool:
        """Download an object while its lock is held; False if there is no room."""
        held = ledger.folder / f"{TEMPORARY_PREFIX}{name}.part"  # holds the room; each attempt has a file of its own
        parts = [held.with_suffix(f".part{attempt}") for attempt in range(ATTEMPTS)]

        def read(attempt: int) -> Path:
            part = parts[attempt]
            stall = STALL_SECONDS * 2**attempt
            call(fs, "get_file", path, str(part), seconds=stall, progress=lambda: _progress(part), stopped=stopped)
            if _size(part) != new.size:
                raise ShortReadError(f"{_size(part)} of {new.size} bytes of {path} arrived")
            return part

        with _local():
            _remove(parts)
            ledger.discard(held)  # of a process that was killed
            if not ledger.reserve(held, new.size, wait=LEDGER_SECONDS):
                return False
        try:
            part = retrying(read, on_retry=self._count_retry, stopped=stopped)
            with _local():
                old = _read(ledger, name)
                os.replace(part, ledger.folder / new.file)
                held.unlink()
                if not self._write(ledger, name, new):
                    ledger.discard(ledger.folder / new.file)
                    return False
                if old is not None and old.file != new.file:
                    ledger.discard(ledger.folder / old.file)
        finally:
            _remove(parts)
            ledger.discard(held)
        return True

    def _write(self, ledger: Ledger, name: str, new: _Record) -> bool:
        temporary = ledger.folder / f"{TEMPORARY_PREFIX}{name}.record"
        ledger.discard(temporary)
        if not ledger.reserve(temporary, RECORD_BYTES, wait=LEDGER_SECONDS):
            return False
        with io.FileIO(temporary, "r+") as file:  # not the `open` that computes deferred images first
            file.write(f"{new.file} {new.size}".ljust(RECORD_BYTES).encode())
        ledger.discard(ledger.folder / name)
        os.replace(temporary, ledger.folder / name)
        return True


def _stop(ahead: Ahead | None) -> Callable[[], bool]:
    return (lambda: False) if ahead is None else ahead.is_closed


class _DiskError(Exception):
    """The local disk failed."""


@contextlib.contextmanager
def _local() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _DiskError from error


@contextlib.contextmanager
def _sole(path: Path) -> Generator[None]:
    """Hold the lock of a file for the block, alone among all threads and processes; the kernel releases a dead one's."""
    import fcntl

    with _local():
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    break
            except FileNotFoundError:  # the holder has removed it
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor, too
        os.close(descriptor)


def _read(ledger: Ledger, name: str) -> _Record | None:
    """Return the record of an object; None if there is none, or it is damaged or another user's."""
    try:
        descriptor = os.open(f"{ledger.folder}/{name}", os.O_RDONLY | OPEN_FLAGS)
        try:
            status, words = os.fstat(descriptor), os.read(descriptor, RECORD_BYTES).split()
        finally:
            os.close(descriptor)
        file, size = words[0].decode(), int(words[1])
    except (OSError, ValueError, IndexError):
        return None
    return _Record(file, size, status.st_mtime) if is_ours(status) and _FILE.fullmatch(file) else None


def _is_whole(ledger: Ledger, record: _Record) -> bool:
    try:
        status = os.lstat(f"{ledger.folder}/{record.file}")
    except OSError:
        return False
    return status.st_size == record.size and is_ours(status)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _progress(path: Path) -> object:
    """Return what changes with each write: some file systems' files have their full size from the start."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _name(address: bytes) -> str:
    return hashlib.blake2b(address, digest_size=16).hexdigest()


def _suffix(path: str) -> str:
    """Return the suffix of a path, as libraries inspect it."""
    suffix = os.path.splitext(path)[1]
    return suffix if _SUFFIX.fullmatch(suffix) else ""
