"""A stretch of a shared file whose bytes are lent as they lie, to borrowers who may do with them what they like.

In: a file, and which stretch of it. Out: memory; once it is taken back it is as it was, and what a borrower kept of it
is his. Refuses to know what lies there.

The mapping is private: the kernel copies a page when it is first written to, and tells which pages it copied, for they
are no pages of the file any more (bit 61 of /proc/self/pagemap: "Examining Process Page Tables" in its documents).
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from hasten.loading.memory.sharing import PAGE, SharedFile, round_up, write_at

MOST_KEPT = 64 << 20  # bytes that borrowers may have kept, until which more is lent: they are taken twice
_ENTRY = 8  # bytes of pagemap for a page
_TOP = 7 if sys.byteorder == "little" else 0  # the byte of an entry that holds bits 56 to 63
_OF_FILE, _SWAPPED, _PRESENT = 1 << 5, 1 << 6, 1 << 7

Root = weakref.ref[Any]
"""Of what all that a borrower can keep of a loan holds on to."""


class PrivateView:
    """The bytes of `file` from `offset` on, `size` of them, as this process sees them. Raises OSError."""

    def __init__(self, file: SharedFile, offset: int, size: int) -> None:
        self._mapping = file.map_private(offset, size)
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data
        self._lent: dict[int, object] = {}  # by where they begin: stretches that are lent, or still kept
        self._kept: dict[int, tuple[int, Sequence[Root]]] = {}  # their sizes, and who has them
        self.memory = memoryview(self._mapping)

    def lend(self, start: int, size: int) -> memoryview | None:
        """These bytes, the first of them a page's, until they are taken back; None where they cannot be lent now.

        They are lent to one borrower at a time, and to nobody while somebody keeps some of them.
        """
        if self.memory.readonly or not _writes_can_be_undone():
            return None
        if self._kept:
            self._forget_what_nobody_keeps()
            if size + sum(kept for kept, _ in list(self._kept.values())) > MOST_KEPT:
                return None
        mine = object()
        return self.memory[start : start + size] if self._lent.setdefault(start, mine) is mine else None

    def take_back(self, start: int, size: int, roots: Sequence[Root]) -> None:
        """End a loan, for all but those who still hold on to one of `roots`: the bytes are theirs."""
        if _is_alive(roots):
            pages = np.frombuffer(self.memory[start : start + size], np.uint8)[::PAGE]
            pages[:] = pages.copy()  # now they are no pages of the file, whatever becomes of that
            self._kept[start] = size, roots
            return
        if self.is_written(start, size):
            self.forget(start, size)
        del self._lent[start]

    def _forget_what_nobody_keeps(self) -> None:
        for start, (size, roots) in list(self._kept.items()):
            if not _is_alive(roots) and self._kept.pop(start, None) is not None:
                self.forget(start, size)
                del self._lent[start]

    def is_written(self, start: int, size: int) -> bool:
        """Whether anything was written there; yes, where that is not told."""
        first, count = (self._address + start) // PAGE, round_up(size) // PAGE
        try:
            descriptor = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            entries = os.pread(descriptor, _ENTRY * count, _ENTRY * first)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        kinds = set(entries[_TOP::_ENTRY])
        is_copied = any(kind & (_PRESENT | _SWAPPED) and not kind & _OF_FILE for kind in kinds)
        return is_copied or len(entries) < _ENTRY * count

    def forget(self, start: int, size: int) -> None:
        """Undo what was written there."""
        self._mapping.madvise(mmap.MADV_DONTNEED, start, round_up(size))


def _is_alive(roots: Sequence[Root]) -> bool:
    return any(root() is not None for root in roots)


@functools.cache
def _writes_can_be_undone() -> bool:
    """Tried, for there are systems that say they are Linux and do some of this in another way."""
    if sys.platform != "linux":
        return False
    file = SharedFile(PAGE)
    try:
        write_at(file.descriptor, [b"\1"], 0)
        view = PrivateView(file, 0, PAGE)
        view.memory[0] = 2
        is_noticed = view.is_written(0, PAGE)
        view.forget(0, PAGE)
        return is_noticed and bytes(view.memory[:1]) == b"\1"
    except (OSError, TypeError):  # no room for private copies
        return False
    finally:
        file.close()
