"""Prepared samples on a local disk: they outlive the run, and unrelated runs share them.

In: what a sample is read from, and its packed value. Out: the value, or nothing where its file is missing, torn,
damaged or another's. Refuses to know which samples are worth keeping, and how much room there is.

One file a value, written aside and renamed: so there is no index to be out of step with, nothing is ever half there,
and a damaged file costs one sample. Nothing is mapped, so no damage can crash the process.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hasten.folders import cache_folder
from hasten.loading.cache.ledger import ASIDE, QUIETLY, Ledger, hold_aside, is_ours
from hasten.loading.cache.parcel import HEAD_SIZE, KEY_SIZE, Opened, open_parcel, seal, size_at, size_of
from hasten.loading.cache.tiers import MISSING, Missing
from hasten.loading.memory.packing import Packed
from hasten.loading.recipe import Recipe

R = TypeVar("R")
# A pipe in a value's place would keep us waiting; a link would lead elsewhere.
_READ = os.O_RDONLY | QUIETLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO}


class DiskTier:
    """The values of one fingerprint, in a folder below `root`, by default `samples_folder()`.

    `budget`: bytes that all fingerprints together may take there; see `Ledger`. Picklable, and usable after a fork.
    Raises OSError where the folder cannot be had.
    """

    name = "disk"

    def __init__(self, budget: int, *, fingerprint: bytes, root: Path | None = None) -> None:
        self.budget = budget
        store = hashlib.blake2b(fingerprint, digest_size=16).hexdigest()
        self._folder = (samples_folder() if root is None else root) / store
        self._ledger = Ledger(self._folder, budget)

    def __getstate__(self) -> tuple[int, Path]:
        return self.budget, self._folder

    def __setstate__(self, state: tuple[int, Path]) -> None:
        self.budget, self._folder = state
        self._ledger = Ledger(self._folder, self.budget)

    @property
    def num_bytes(self) -> int:
        """Bytes that all fingerprints take."""
        return self._ledger.num_bytes

    @property
    def is_full(self) -> bool:
        """Not known before a value asks for room."""
        return False

    def key(self, index: int, recipe: Recipe) -> bytes | None:
        """A digest of what the sample is read from and how it is prepared."""
        try:
            identity = recipe.identity(index)
        except OSError:  # to prepare it will say so in the user's own words
            return None
        if identity is None:
            return None
        recipes = hashlib.sha256(recipe.fingerprint).digest()
        return hashlib.blake2b(identity, digest_size=KEY_SIZE, key=recipes).digest()

    def get(self, key: bytes, use: Callable[[Any, Opened], R]) -> R | Missing:
        """What `use` makes of the value and its parcel, or MISSING. The value is a copy of `use`'s own."""
        path = self._folder / key.hex()
        try:
            memory = _read(path, key)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                return MISSING  # not there, or the machine is short of something
            memory = None
        opened = None if memory is None else open_parcel(memory, key, checked=True)
        try:
            unpacked = opened and opened.unpacked()
        except Exception:  # whole, but made with another release of what its classes come from
            unpacked = None
        if opened is None or unpacked is None:
            self._ledger.discard(path)
            return MISSING
        return use(unpacked.value, opened)

    def put(self, key: bytes, packed: Packed, seconds: float) -> bool:
        """Keep a value. False when there is no room or it is there already. Raises OSError when the disk refuses."""
        path = self._folder / key.hex()
        size = size_of(packed)
        if self._ledger.is_full(size) or os.path.lexists(path):
            return False
        aside = path.with_name(f"{ASIDE}{path.name}.{os.getpid()}.{time.monotonic_ns()}")
        if not self._ledger.reserve(aside, size):
            return False
        try:
            with open(aside, "r+b", buffering=0) as file:
                hold_aside(file.fileno())
                for piece in seal(key, packed, seconds=seconds, checked=True).pieces:
                    left = memoryview(piece)
                    while left.nbytes:
                        left = left[file.write(left) :]
            os.replace(aside, path)
        except OSError:
            self._ledger.discard(aside)
            raise
        return True

    def relieve(self) -> int:
        """Nothing: what lies on a disk can stay there."""
        return 0

    def clear(self) -> None:
        """Nothing: another recipe's values have other names, and these may be wanted again."""

    def close(self) -> None:
        """Let go of the folder in this process."""
        self._ledger.close()


def samples_folder() -> Path:
    """Where values are kept, in hasten's cache folder. Raises RuntimeError where there is no home folder."""
    return cache_folder() / "hasten-samples"


def _read(path: Path, key: bytes) -> memoryview | None:
    """The file's bytes, where it has as many as its head says; None where it is no file of ours."""
    with open(path, "rb", buffering=0, opener=lambda name, _: os.open(name, _READ)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not is_ours(status):
            return None
        head = file.read(HEAD_SIZE)
        if size_at(memoryview(head), key) != status.st_size:
            return None
        memory = np.empty(status.st_size, np.uint8).data.cast("B")
        memory[:HEAD_SIZE] = head
        at = HEAD_SIZE
        while at < len(memory):
            num_read = file.readinto(memory[at:])
            if not num_read:
                return None
            at += num_read
        return memory
