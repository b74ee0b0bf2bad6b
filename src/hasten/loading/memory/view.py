"""A stretch of a shared file that this process may lend, and write to without anybody else seeing it.

In: a file, and which stretch of it. Out: memory, and whether somebody wrote to it. Refuses to know what lies there.

The kernel copies a page of a private mapping when it is first written to, and tells which pages it copied: they are no
pages of the file any more, bit 61 of /proc/self/pagemap ("Examining Process Page Tables" in the kernel's documents).
"""

from __future__ import annotations

import functools
import mmap
import os
import sys

import numpy as np

from hasten.loading.memory.sharing import PAGE, SharedFile, round_up, write_at

_ENTRY = 8  # bytes of pagemap for a page
_TOP = 7 if sys.byteorder == "little" else 0  # the byte of an entry that holds bits 56 to 63
_OF_FILE, _SWAPPED, _PRESENT = 1 << 5, 1 << 6, 1 << 7


class PrivateView:
    """The bytes of `file` from `offset` on, `size` of them, as this process sees them. Raises OSError."""

    def __init__(self, file: SharedFile, offset: int, size: int) -> None:
        self._mapping = file.map_private(offset, size)
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data
        self.memory = memoryview(self._mapping)

    @property
    def can_lend(self) -> bool:
        """Whether writes stay in this process, are noticed, and can be undone."""
        return not self.memory.readonly and _writes_are_told()

    def is_written(self, start: int, size: int) -> bool:
        """Whether anything was written to these bytes since `forget`; yes, where that cannot be known just now."""
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
        return any(kind & (_PRESENT | _SWAPPED) and not kind & _OF_FILE for kind in kinds)

    def forget(self, start: int, size: int) -> None:
        """Undo what was written to these bytes; `start` is a page's first."""
        self._mapping.madvise(mmap.MADV_DONTNEED, start, round_up(size))

    def own(self, start: int, size: int) -> None:
        """Make these bytes this process's, whatever becomes of the file; `start` is a page's first."""
        pages = np.frombuffer(self.memory[start : start + size], np.uint8)[::PAGE]
        pages[:] = pages.copy()


@functools.cache
def _writes_are_told() -> bool:
    """Tried, for there are systems that say they are Linux and tell nothing there."""
    if sys.platform != "linux":
        return False
    file = SharedFile(PAGE)
    try:
        write_at(file.descriptor, [b"\1"], 0)
        view = PrivateView(file, 0, PAGE)
        before = view.memory[0], view.is_written(0, PAGE)
        view.memory[0] = 2
        return before == (1, False) and view.is_written(0, PAGE)
    except (OSError, TypeError):  # no room for private copies
        return False
    finally:
        file.close()
