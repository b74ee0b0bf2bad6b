"""Prepared samples in memory: one copy for all threads and worker processes of a loader, and for all ranks of a host.

In: a sample's position in its dataset, and its packed value. Out: the value, viewed where it lies. Refuses to know
which samples are worth keeping.

The memory is a file without a name: words | the offset of each sample | parcels. Parcels are laid one after the other
and never moved, and no stretch of the file is used twice, so who reads or writes late does no harm: a parcel counts
only while it lies between two of the words, FLOOR and CEILING.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from hasten.loading.cache.budget import available_memory, spare_memory
from hasten.loading.cache.parcel import HEAD_SIZE, KEY_SIZE, Opened, open_parcel, seal, size_at, size_of
from hasten.loading.cache.rendezvous import meet
from hasten.loading.cache.tiers import MISSING, Missing
from hasten.loading.memory.packing import Packed
from hasten.loading.memory.sharing import PAGE, SharedFile, round_up, write_at
from hasten.loading.memory.turns import turn
from hasten.loading.memory.view import PrivateView, Root
from hasten.loading.recipe import Recipe

R = TypeVar("R")
FLOOR, CEILING, USED = range(3)
LENT_FROM = 64 << 10  # bytes; to copy a smaller value costs less than pages of its own would waste
LOOK_EVERY = 64 << 20  # bytes filled, by whomever, between two looks at how much memory is left


class _Place(NamedTuple):
    """Where a parcel is: in this process's view, and in the file."""

    view: PrivateView
    start: int
    offset: int
    size: int


class RamTier:
    """Room for the values of `num_samples` samples.

    Processes of a host that make it with the same `host_key` share it. Usable after a fork, and picklable to a process
    while that is started. Raises OSError where the memory cannot be had, or `budget` (bytes) is less than the tables
    take.
    """

    name = "ram"

    def __init__(self, budget: int, *, num_samples: int, host_key: bytes | None = None) -> None:
        self.budget = budget
        self._start = PAGE + round_up(8 * num_samples)
        self._capacity = (budget - self._start) // PAGE * PAGE
        if not hasattr(os, "preadv"):
            raise OSError("memory is not shared on this platform")
        if self._capacity <= 0:
            raise OSError(f"{num_samples} samples cannot be kept in {budget} bytes of memory")
        size = self._start + self._capacity
        self._file = SharedFile(size) if host_key is None else meet(host_key, size=size)
        self._map_tables()
        with turn(self._file.descriptor) as ours:
            if ours and not self._words[FLOOR]:
                self._open_from(self._start)

    def _map_tables(self) -> None:
        tables = memoryview(self._file.map(self._start)).cast("Q")
        self._words, self._offsets = tables[: PAGE // 8], tables[PAGE // 8 :]
        self._view: tuple[PrivateView, int] | None = None
        self._least = 0  # bytes of the smallest value that came by in this process

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in ("budget", "_start", "_capacity", "_file")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._map_tables()

    @property
    def num_bytes(self) -> int:
        """Bytes of memory in use, by the kernel's count."""
        return self._file.num_bytes

    @property
    def is_full(self) -> bool:
        """Whether the smallest value that came by finds no room any more."""
        return self._words[USED] + self._least > self._words[CEILING]

    def key(self, index: int, recipe: Recipe) -> bytes | None:
        """The sample's position, by which recipe it was prepared, and of what, where that can be told."""
        identity = recipe.identity(index)
        digest = _digest(recipe.fingerprint)
        if identity is not None:
            digest = hashlib.blake2b(identity, key=digest, digest_size=len(digest)).digest()
        return index.to_bytes(8, "little") + digest

    def get(self, key: bytes, use: Callable[[Any, Opened], R]) -> R | Missing:
        """What `use` makes of the value and its parcel, or MISSING.

        The value is lent or a copy: what is written to it is seen by nobody else and undone afterwards, and who keeps an
        array of it keeps that as it is.
        """
        place = self._find(key)
        if place is None:
            return MISSING
        view, start, offset, size = place
        lent = view.lend(start, size) if size >= LENT_FROM else None
        roots: list[Root] = []
        try:
            found = self._used(place, lent, key, use, roots)
        finally:
            if lent is not None:
                view.take_back(start, size, roots)
        if found is not MISSING and (lent is None or self._holds(offset, size)):
            return found
        return self._dropped(offset, size)

    def put(self, key: bytes, packed: Packed, seconds: float) -> bool:
        """Keep a value. False when there is no room or it is there already. Raises OSError when memory runs out."""
        size = size_of(packed)
        self._least = min(size, self._least or size)
        index = int.from_bytes(key[:8], "little")
        offset = self._reserve(index, size)
        if offset is None:
            return False
        try:
            write_at(self._file.descriptor, seal(key, packed, seconds=seconds, checked=False).pieces, offset)
            # Written last, and by the kernel, which puts it behind the parcel on every processor.
            write_at(self._file.descriptor, [offset.to_bytes(8, sys.byteorder)], PAGE + 8 * index)
        except OSError:
            self._file.free(offset, offset + size)
            raise
        if offset // LOOK_EVERY != (offset + size) // LOOK_EVERY:
            self.relieve()
        if not self._holds(offset, size):
            self._dropped(offset, size)
            return False
        return True

    def relieve(self) -> int:
        """Give back what the machine or the control group is short of, and take nothing more; return bytes."""
        with turn(self._file.descriptor) as ours:
            short = spare_memory() - available_memory()
            if short <= 0 or not ours:
                return 0
            before = self.num_bytes
            used = self._words[USED]
            end = max(self._words[FLOOR], min(self._words[CEILING], used) - round_up(short)) // PAGE * PAGE
            self._words[CEILING] = end
            self._file.free(end, used)
            return before - self.num_bytes

    def clear(self) -> None:
        """Forget everything and begin anew. Others may go on reading and filling meanwhile."""
        with turn(self._file.descriptor) as ours:
            if not ours:
                self._words[CEILING] = 0  # a stopped process keeps its turn: hold nothing any more
                return
            start, end = self._words[FLOOR], round_up(self._words[USED])
            self._open_from(end)
            self._file.free(start, end)

    def close(self) -> None:
        """Let go of the memory in this process; what is viewed stays until nothing refers to it."""
        self._words = self._offsets = memoryview(b"")
        self._view = None
        self._file.close()

    def _open_from(self, start: int) -> None:
        self._file.grow(start + self._capacity)
        self._words[FLOOR] = start  # first: from here on nothing that lies below counts
        self._words[USED] = start
        self._words[CEILING] = start + self._capacity

    def _holds(self, offset: int, size: int) -> bool:
        return self._words[FLOOR] <= offset and offset + size <= self._words[CEILING]

    def _reserve(self, index: int, size: int) -> int | None:
        if self._words[USED] + size > self._words[CEILING] or self._holds(self._offsets[index], HEAD_SIZE):
            return None
        with turn(self._file.descriptor) as ours:
            used = self._words[USED]
            own_pages = size >= LENT_FROM
            start = round_up(used) if own_pages else used
            end = start + (round_up(size) if own_pages else size)
            if not ours or end > self._words[CEILING]:
                return None
            self._words[USED] = end
            return start

    def _find(self, key: bytes) -> _Place | None:
        offset = self._offsets[int.from_bytes(key[:8], "little")]
        if not self._holds(offset, HEAD_SIZE):
            return None
        floor = self._words[FLOOR]
        known = self._view
        if known is None or known[1] != floor:
            try:
                known = self._view = PrivateView(self._file, floor, self._capacity), floor
            except OSError:  # no room for a view in this process
                return None
        start = max(0, offset - floor)  # less than 0 where the tier was cleared just now
        size = size_at(known[0].memory[start : start + HEAD_SIZE], key)
        if size is None or not self._holds(offset, size):
            return None
        return _Place(known[0], start, offset, size)

    def _used(
        self,
        place: _Place,
        lent: memoryview | None,
        key: bytes,
        use: Callable[[Any, Opened], R],
        roots: list[Root],
    ) -> R | Missing:
        """What `use` makes of the value; `roots` gets what tells whether somebody keeps some of it."""
        _, _, offset, size = place
        try:
            memory = memoryview(self._file.read(offset, size)) if lent is None else lent
            opened = open_parcel(memory, key, checked=False)
            unpacked = opened and opened.unpacked()
        except Exception:  # the memory was given back, or this process does not know the value's class
            return MISSING
        if opened is None or unpacked is None or not self._holds(offset, size):
            return MISSING
        roots += unpacked.roots
        try:
            return use(unpacked.value, opened)
        except Exception:
            if self._holds(offset, size):
                raise
            return MISSING

    def _dropped(self, offset: int, size: int) -> Missing:
        """To read or write memory that was given back takes it again."""
        if not self._holds(offset, size):
            self._file.free(offset, offset + size)
        return MISSING


@lru_cache
def _digest(fingerprint: bytes) -> bytes:
    return hashlib.blake2b(fingerprint, digest_size=KEY_SIZE - 8).digest()
