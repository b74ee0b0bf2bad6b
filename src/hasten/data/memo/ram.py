"""Values in memory, shared by all workers of a run and all ranks of a host.

One shared file holds a table of keys, followed by the values. Nothing is evicted, and a full tier takes nothing more: in a
shuffled epoch each value is requested once, and no eviction policy does better. Values are never changed, and each reader gets
its own memory: a copy, or for a large value a private copy-on-write mapping, which costs nothing for untouched pages.

If the machine runs short of memory, the tier releases the values it stored last and takes nothing more. Values returned as
mappings stay, because they may be in use.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hasten.data.layout.sharing import PAGE, SharedFile, locked, round_up, write_at
from hasten.data.memo.budget import available_memory, spare_memory
from hasten.data.memo.codec import Encoded
from hasten.data.memo.keys import KEY_BYTES
from hasten.data.memo.rendezvous import shared_file

MAPPED_FROM = 1 << 20  # bytes from which a mapping is faster than a copy
MAX_MAPPED = 4096  # mappings per process; the kernel allows 65,530
BYTES_PER_ENTRY = 2048  # bytes of the budget per entry of the table
MAX_PROBES = 64
CHECK_EVERY = 64 << 20  # bytes stored between checks whether memory is short
_ENTRY = 4  # words: key (2), offset, size
USED, CEILING, LARGE_END = range(3)  # words of the first page: where the next value goes, and which bytes are valid

Memory = np.ndarray[Any, np.dtype[np.uint8]]


class RamTier:
    """A cache of up to `budget` bytes, including the table, as counted by the kernel.

    Usable after a fork, and picklable to a process being started.

    Args:
        budget: bytes the tier may use.
        host_key: independently started processes with the same key and budget share one tier.

    Raises:
        OSError: if the memory cannot be allocated.
    """

    name = "ram"

    def __init__(self, budget: int, *, host_key: bytes | None = None) -> None:
        self.budget = budget
        self._num_entries = 1 << max(8, (budget // BYTES_PER_ENTRY).bit_length() - 1)
        self._start = PAGE + round_up(8 * _ENTRY * self._num_entries)
        self._capacity = (budget - self._start) // PAGE * PAGE
        if not hasattr(os, "preadv") or self._capacity <= 0:
            raise OSError(f"{budget} bytes of shared memory are too few to store values")
        size = self._start + self._capacity
        self._file = SharedFile(size) if host_key is None else shared_file(host_key, size=size)
        # A separate file, because closing any descriptor of a locked file unlocks it.
        self._lock = SharedFile(PAGE) if host_key is None else shared_file(host_key + b"lock", size=PAGE)
        self._map_tables()
        with locked(self._lock.descriptor) as acquired:
            if acquired and not self._words[CEILING]:
                self._words[USED] = self._start
                self._words[CEILING] = size

    def _map_tables(self) -> None:
        tables = memoryview(self._file.map(self._start)).cast("Q")
        self._words, self._table = tables[: PAGE // 8], tables[PAGE // 8 :]
        self._num_mapped = _Live()
        self._all: Memory | None = None

    def __getstate__(self) -> dict[str, object]:
        return {
            name: self.__dict__[name] for name in ("budget", "_num_entries", "_start", "_capacity", "_file", "_lock")
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._map_tables()

    @property
    def num_bytes(self) -> int:
        """Bytes of memory in use, as counted by the kernel."""
        return self._file.num_bytes

    def takes(self, size: int) -> bool:
        """Whether a value of `size` bytes may fit."""
        return self._words[USED] + size <= self._words[CEILING]

    def __contains__(self, key: bytes) -> bool:
        found = self._find(key)
        return found is not None and found[1] > 0

    def read(self, key: bytes) -> Memory | None:
        """Return the stored bytes in memory that only the caller uses; None if there are none."""
        place = self._find(key)
        if place is None:
            return None
        offset, size = place
        if not size or not self._holds(offset, size):
            return None
        if size >= MAPPED_FROM and (mapped := self._mapped(offset, size)) is not None:
            return mapped
        memory = np.empty(size, np.uint8)
        try:
            if os.preadv(self._file.descriptor, [memory.data], offset) != size:
                return None
        except OSError:
            return None
        return memory if self._holds(offset, size) else None  # released in the meantime: the bytes read are zeros

    def view(self, key: bytes) -> tuple[Memory, Callable[[], bool]] | None:
        """Return a view of the stored bytes, which must not be written to; None if there are none.

        Also returns a function to call after reading, which says whether the bytes were still valid: released memory reads
        as zeros.
        """
        place = self._find(key)
        if place is None or not place[1] or not self._holds(*place):
            return None
        if self._all is None:
            try:
                self._all = np.frombuffer(self._file.map(self._start + self._capacity), np.uint8)
            except OSError:  # a limit on address space
                return None
        offset, size = place
        return self._all[offset : offset + size], functools.partial(self._holds, offset, size)

    def write(self, key: bytes, encoded: Encoded) -> bool:
        """Store a value. False if it does not fit or is stored already. Raises OSError if memory runs out."""
        size = encoded.size
        if self._words[USED] + size > self._words[CEILING]:
            return False
        place = self._reserve(key, size)
        if place is None:
            return False
        entry, offset = place
        try:
            write_at(self._file.descriptor, encoded.pieces, offset)
            # Written last, and by the kernel, so that every processor sees it after the value.
            numbers = offset.to_bytes(8, sys.byteorder) + size.to_bytes(8, sys.byteorder)
            write_at(self._file.descriptor, [numbers], PAGE + 8 * (entry + 2))
        except OSError:
            self._file.free(offset, offset + size)
            raise
        if offset // CHECK_EVERY != (offset + size) // CHECK_EVERY:
            self.shrink()
        if not self._holds(offset, size):
            self._file.free(offset, offset + size)  # writing allocated memory again that was released in the meantime
            return False
        return True

    def shrink(self) -> int:
        """Release the bytes that the machine or control group lacks, and take nothing more; return the bytes released."""
        with locked(self._lock.descriptor) as acquired:
            short = spare_memory() - available_memory()
            if short <= 0 or not acquired:
                return 0
            before, used = self.num_bytes, self._words[USED]
            least = max(self._start, self._words[LARGE_END])
            end = max(least, min(self._words[CEILING], used) - round_up(short)) // PAGE * PAGE
            self._words[CEILING] = end
            self._file.free(end, round_up(used))
            return before - self.num_bytes

    def _holds(self, offset: int, size: int) -> bool:
        return self._start <= offset and offset + size <= self._words[CEILING]

    def _entry_of(self, key: bytes) -> tuple[int, bool] | None:
        """Return the position of the key's entry and whether it is present; None if the table is too crowded."""
        low, high = int.from_bytes(key[:8], sys.byteorder) or 1, int.from_bytes(key[8:KEY_BYTES], sys.byteorder)
        table = self._table
        mask = len(table) // _ENTRY - 1
        for probe in range(MAX_PROBES):
            entry = ((low + probe) & mask) * _ENTRY
            found = table[entry]
            if not found:
                return entry, False
            if found == low and table[entry + 1] == high:
                return entry, True
        return None

    def _find(self, key: bytes) -> tuple[int, int] | None:
        place = self._entry_of(key)
        if place is None or not place[1]:
            return None
        entry, _ = place
        return self._table[entry + 2], self._table[entry + 3]

    def _reserve(self, key: bytes, size: int) -> tuple[int, int] | None:
        with locked(self._lock.descriptor) as acquired:
            place = self._entry_of(key) if acquired else None
            if place is None or place[1]:
                return None
            is_large = size >= MAPPED_FROM
            start = round_up(self._words[USED]) if is_large else self._words[USED]
            end = start + (round_up(size) if is_large else size)
            if end > self._words[CEILING]:
                return None
            entry, _ = place
            self._table[entry + 1] = int.from_bytes(key[8:KEY_BYTES], sys.byteorder)
            self._table[entry] = int.from_bytes(key[:8], sys.byteorder) or 1
            self._words[USED] = end
            if is_large:
                self._words[LARGE_END] = end
            return entry, start

    def _mapped(self, offset: int, size: int) -> Memory | None:
        if self._num_mapped.count >= MAX_MAPPED:
            return None
        try:
            return np.asarray(_Mapping(self._file.descriptor, offset, size, self._num_mapped))
        except OSError:
            return None


class _Live:
    """Counts the live mappings of this process."""

    def __init__(self) -> None:
        self.count = 0
        self.threads = threading.Lock()


class _Mapping:
    """A private mapping of a range of a file; unmapped when nothing refers to it.

    Not `mmap.mmap`, which holds a descriptor for each mapping before Python 3.13.
    """

    def __init__(self, descriptor: int, offset: int, size: int, live: _Live) -> None:
        address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, descriptor, offset)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "cannot be mapped")
        self._address, self._size, self._live = address, size, live
        live.count += 1
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        if hasattr(self, "_address"):
            _libc().munmap(self._address, self._size)
            self._live.count -= 1


_loaded: Any = None


def _libc() -> Any:
    global _loaded
    if _loaded is None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        _loaded = libc
    return _loaded
