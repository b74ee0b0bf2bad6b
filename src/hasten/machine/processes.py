"""A process and everything it started: counters summed over the tree, exited children included.

psutil reads each process. What it does not know on Linux is read here: page faults, and a process's children without
asking every process of the machine for its parent.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ProcessCounters:
    """One process: its own and its waited-for children's counters since they started, and its memory. None: unknown."""

    cpu_seconds: float
    minor_faults: int | None = None
    major_faults: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    resident_bytes: int = 0
    shared_bytes: int = 0
    is_alive: bool = True  # False: ended, but not waited for yet


class RisingCounter:
    """A counter that never decreases, from readings that may.

    A child's counters move to its parent when the parent waits for it; read in between, the sum dips and
    comes back. A dip that stays is a process nobody waited for: what it used is kept, and counting continues
    from below.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._last: float | None = None
        self._dipped = False

    def feed(self, reading: float) -> float:
        """Take the next reading and return the total so far."""
        if self._last is None:
            self.total = self._last = reading
        elif reading >= self._last:
            self.total += reading - self._last
            self._last, self._dipped = reading, False
        elif self._dipped:
            self._last, self._dipped = reading, False
        else:
            self._dipped = True
        return self.total


class ProcessTree:
    """The tree of `pid`. `seen` holds (pid, creation time) of every process that was ever in it."""

    def __init__(self, pid: int) -> None:
        self.seen: set[tuple[int, float]] = set()
        self._root = pid
        self._known: dict[int, psutil.Process] = {}

    def read(self) -> dict[int, ProcessCounters]:
        """All live processes of the tree, parents first, so that a child that ends is not yet counted in its parent."""
        found: dict[int, ProcessCounters] = {}
        waiting = [self._root, *self._known]  # an orphan is no longer a child in the tree, but still belongs to it
        while waiting:
            pid = waiting.pop(0)
            if pid in found:
                continue
            try:
                process = self._known.get(pid) or psutil.Process(pid)
                if not process.is_running():  # another process may have reused its id
                    raise psutil.NoSuchProcess(pid)
                found[pid] = _read(process)
                waiting += _children(process)
            except psutil.Error:
                self._known.pop(pid, None)
                continue
            if pid not in self._known:
                self._known[pid] = process
                self.seen.add((pid, process.create_time()))
        return found


def _read(process: psutil.Process) -> ProcessCounters:
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
        is_alive = process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    exited = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    minor, major = _faults(process.pid)
    read, written = _disk_bytes(process)
    return ProcessCounters(
        cpu_seconds=times.user + times.system + exited,
        minor_faults=minor,
        major_faults=major,
        read_bytes=read,
        written_bytes=written,
        resident_bytes=memory.rss,
        shared_bytes=getattr(memory, "shared", 0),
        is_alive=is_alive,
    )


def _disk_bytes(process: psutil.Process) -> tuple[int | None, int | None]:
    """Bytes read from and written to the disk; None if this system or the process's owner does not allow it."""
    try:
        counters = process.io_counters()
    except (psutil.Error, AttributeError, OSError):
        return None, None
    return counters.read_bytes, counters.write_bytes


def _faults(pid: int) -> tuple[int | None, int | None]:
    """Minor and major page faults; None without /proc."""
    try:
        return parse_faults(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, IndexError):
        return None, None


def parse_faults(stat: str) -> tuple[int, int]:
    """Minor and major page faults of a /proc/<pid>/stat. The name in parentheses may contain spaces and parentheses."""
    words = stat[stat.rindex(")") + 2 :].split()
    return int(words[7]) + int(words[8]), int(words[9]) + int(words[10])


def _children(process: psutil.Process) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task")
    if not (tasks / str(process.pid) / "children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in process.children()]
    found: list[int] = []
    with contextlib.suppress(OSError):  # a thread that has just ended
        for task in os.listdir(tasks):
            found += map(int, (tasks / task / "children").read_text(encoding="utf-8").split())
    return found


def read_pss(pids: Iterable[int]) -> int | None:
    """Proportional set size of the processes, in bytes: shared pages count once. None if unknown."""
    sizes: list[int] = []
    for pid in pids:
        with contextlib.suppress(psutil.Error, AttributeError):  # ended, owned by another user, or not on Linux
            sizes.append(psutil.Process(pid).memory_full_info().pss)
    return sum(sizes) if sizes else None
