"""Values on a local disk, which outlive the run.

Each value is one file, written under a temporary name and renamed: there is no index that could become inconsistent, no file is
ever partial, and a damaged file costs one value. Nothing is memory-mapped, so damage cannot crash the process, and nothing is
unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from hasten.data.memo.codec import Encoded
from hasten.data.memo.keys import KEY_BYTES
from hasten.data.memo.ledger import OPEN_FLAGS, TEMPORARY_PREFIX, Ledger, is_ours, lock_temporary
from hasten.folders import cache_folder

Memory = np.ndarray[Any, np.dtype[np.uint8]]

_MAGIC = b"hasten\x00\x02"
_HEAD = struct.Struct(f"<8sIQ{KEY_BYTES}s")
HEAD_BYTES = 64  # magic, checksum of the value, its size, its key; padded
# Opening a pipe in a value's place would block; following a symlink would read another file.
_READ = os.O_RDONLY | OPEN_FLAGS | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO}


class DiskTier:
    """The values of one script, in a separate folder of the cache. Picklable, and usable after a fork.

    Args:
        budget: bytes that the values of all scripts together may take; if exceeded, the least recently used folder is removed.
        root: the cache folder; `memo_folder()` by default.
        script: identifies the script; the path of the running script by default.

    Raises:
        OSError: if the folder cannot be created or opened.
    """

    name = "disk"

    def __init__(self, budget: int, *, root: Path | None = None, script: str | None = None) -> None:
        self.budget = budget
        name = os.path.abspath(sys.argv[0] if sys.argv else "") if script is None else script
        store = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        self._folder = (memo_folder() if root is None else root) / store
        self._ledger = Ledger(self._folder, budget)

    def __getstate__(self) -> tuple[int, Path]:
        return self.budget, self._folder

    def __setstate__(self, state: tuple[int, Path]) -> None:
        self.budget, self._folder = state
        self._ledger = Ledger(self._folder, self.budget)

    @property
    def num_bytes(self) -> int:
        """Bytes that the values of all scripts take."""
        return self._ledger.num_bytes

    def takes(self, size: int) -> bool:
        """Whether a value of `size` bytes may fit."""
        return not self._ledger.is_full(size)

    def __contains__(self, key: bytes) -> bool:
        return os.path.lexists(self._folder / key.hex())

    def read(self, key: bytes) -> Memory | None:
        """Return the stored bytes in newly allocated memory; None if there are none, or they are damaged."""
        path = self._folder / key.hex()
        try:
            memory = _read(path, key)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                return None  # not there, or out of some resource
            memory = None
        if memory is None:
            self._ledger.discard(path)
        return memory

    def write(self, key: bytes, encoded: Encoded) -> bool:
        """Store a value. False if it does not fit or is stored already. Raises OSError if the disk fails."""
        path = self._folder / key.hex()
        size = HEAD_BYTES + encoded.size
        if self._ledger.is_full(size) or os.path.lexists(path):
            return False
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}.{os.getpid()}.{time.monotonic_ns()}")
        if not self._ledger.reserve(temporary, size):
            return False
        checksum = 0
        for piece in encoded.pieces:
            checksum = zlib.crc32(piece, checksum)
        head = _HEAD.pack(_MAGIC, checksum, encoded.size, key)
        try:
            with io.FileIO(temporary, "r+") as file:  # not the `open` that computes deferred images first
                lock_temporary(file.fileno())
                for piece in [head + bytes(HEAD_BYTES - len(head)), *encoded.pieces]:
                    left = memoryview(piece)
                    while left.nbytes:
                        left = left[file.write(left) :]
            os.replace(temporary, path)
        except OSError:
            self._ledger.discard(temporary)
            raise
        return True


def memo_folder() -> Path:
    """Return the folder of stored values, in hasten's cache folder. Raises RuntimeError if there is no home folder."""
    return cache_folder() / "memo"


def _read(path: Path, key: bytes) -> Memory | None:
    """Return the value's bytes; None if the file belongs to another user, or is damaged."""
    with open(path, "rb", buffering=0, opener=lambda name, _: os.open(name, _READ)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not is_ours(status):
            return None
        head = file.read(HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            return None
        magic, checksum, size, found = _HEAD.unpack_from(head)
        if magic != _MAGIC or found != key or HEAD_BYTES + size != status.st_size:
            return None
        memory = np.empty(size, np.uint8)
        at = 0
        while at < size:
            num_read = file.readinto(memory[at:].data)
            if not num_read:
                return None
            at += num_read
        if hasattr(os, "posix_fadvise"):  # leave the page cache to the files that must be read again
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return memory if zlib.crc32(memory.data) == checksum else None
