"""A process and everything it started: what they use together.

In: a process id. Out: counters summed over the tree, exited children included. Refuses to know what the
processes do, and to fail because one of them vanished.

On Linux the texts of /proc are read directly: a sample costs a few file reads a process, whatever else runs
on the machine. Elsewhere psutil answers what it can and the rest is None.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ProcessCounters:
    """One process: its own and its waited-for children's counters, and its memory."""

    parent: int
    started_ticks: int
    cpu_seconds: float
    minor_faults: int
    major_faults: int
    read_bytes: int | None = None
    written_bytes: int | None = None
    resident_bytes: int = 0
    shared_bytes: int = 0
    is_alive: bool = True  # False: ended, and not waited for yet


def parse_stat(text: str, *, ticks_per_second: float) -> ProcessCounters:
    """A /proc/<pid>/stat. The name in parentheses may itself hold spaces and parentheses."""
    words = text[text.rindex(")") + 2 :].split()
    return ProcessCounters(
        parent=int(words[1]),
        started_ticks=int(words[19]),
        cpu_seconds=sum(int(word) for word in words[11:15]) / ticks_per_second,
        minor_faults=int(words[7]) + int(words[8]),
        major_faults=int(words[9]) + int(words[10]),
        is_alive=words[0] not in "ZX",
    )


def parse_statm(text: str, *, page_bytes: int) -> tuple[int, int]:
    """Resident and shared bytes of a /proc/<pid>/statm."""
    words = text.split()
    return int(words[1]) * page_bytes, int(words[2]) * page_bytes


class Rising:
    """A counter that never goes back, over readings that may.

    A child's counters move to its parent when the parent waits for it; read in between, the sum dips and
    comes back. A dip that stays is a process nobody waited for: what it used is kept, and counting goes on
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
        self._started: dict[int, int] = {}  # pid -> start in ticks: tells a process from a later one of its id
        self._has_proc = Path("/proc", str(pid), "stat").exists()
        # Without it (CONFIG_PROC_CHILDREN) every process of the machine has to be asked for its parent.
        self._has_children = Path(f"/proc/{pid}/task/{pid}/children").exists()
        self._ticks = float(os.sysconf("SC_CLK_TCK")) if self._has_proc else 100.0
        self._page = os.sysconf("SC_PAGE_SIZE") if self._has_proc else 4096

    def read(self) -> dict[int, ProcessCounters]:
        """Every living process of the tree, parents first: a child that is gone is then in no parent yet."""
        found = self._read_proc() if self._has_proc else self._read_psutil()
        for pid in found.keys() - self._started.keys():
            self._remember(pid, found[pid].started_ticks)
        return found

    def _read_proc(self) -> dict[int, ProcessCounters]:
        found: dict[int, ProcessCounters] = {}
        by_parent = None if self._has_children else _children_by_parent(self._ticks)
        waiting = [self._root, *self._started]  # an orphan is no longer anybody's child here, but still ours
        while waiting:
            pid = waiting.pop(0)
            if pid in found:
                continue
            counters = self._read_one(pid)
            if counters is None or self._started.get(pid, counters.started_ticks) != counters.started_ticks:
                self._started.pop(pid, None)
                continue
            found[pid] = counters
            waiting += _children(pid) if by_parent is None else by_parent.get(pid, [])
        return found

    def _read_one(self, pid: int) -> ProcessCounters | None:
        folder = f"/proc/{pid}"
        try:
            stat = parse_stat(_read(f"{folder}/stat"), ticks_per_second=self._ticks)
            resident, shared = parse_statm(_read(f"{folder}/statm"), page_bytes=self._page)
        except (OSError, ValueError, IndexError):
            return None
        read, written = _read_io(folder)
        return ProcessCounters(
            stat.parent, stat.started_ticks, stat.cpu_seconds, stat.minor_faults, stat.major_faults,
            read, written, resident, shared, stat.is_alive,
        )  # fmt: skip

    def _read_psutil(self) -> dict[int, ProcessCounters]:
        found: dict[int, ProcessCounters] = {}
        for process in _psutil_tree(self._root):
            try:
                times, started = process.cpu_times(), int(process.create_time() * 100)
                resident = process.memory_info().rss
            except psutil.Error:
                continue
            own = times.user + times.system
            children = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            found[process.pid] = ProcessCounters(0, started, own + children, 0, 0, resident_bytes=resident)
        return found

    def _remember(self, pid: int, started_ticks: int) -> None:
        try:
            created = psutil.Process(pid).create_time()
        except psutil.Error:
            return
        self._started[pid] = started_ticks
        self.seen.add((pid, created))

    @property
    def tells_faults(self) -> bool:
        """Whether this system tells a process's page faults."""
        return self._has_proc


def read_pss(pids: Iterable[int]) -> int | None:
    """Proportional set size of some processes: pages they share count once. None where it is not told."""
    total, told = 0, False
    for pid in pids:
        try:
            total += parse_pss(_read(f"/proc/{pid}/smaps_rollup"))
            told = True
        except (OSError, ValueError):
            continue  # vanished, or of another user
    return total if told else None


def parse_pss(smaps_rollup: str) -> int:
    """Bytes of the Pss line of a /proc/<pid>/smaps_rollup."""
    for line in smaps_rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no Pss line")


def parse_io(text: str) -> tuple[int, int]:
    """Bytes that a /proc/<pid>/io says came from and went to the disk, waited-for children included."""
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return int(fields["read_bytes"]), int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])


def _read_io(folder: str) -> tuple[int | None, int | None]:
    try:
        return parse_io(_read(f"{folder}/io"))
    except (OSError, ValueError, KeyError):
        return None, None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(word) for word in _read(f"/proc/{pid}/task/{task}/children").split()]
    except OSError:
        pass
    return found


def _children_by_parent(ticks: float) -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = parse_stat(_read(f"/proc/{name}/stat"), ticks_per_second=ticks)
            except (OSError, ValueError, IndexError):
                continue
            tree.setdefault(stat.parent, []).append(int(name))
    return tree


def _psutil_tree(pid: int) -> Iterator[psutil.Process]:
    try:
        root = psutil.Process(pid)
        yield root
        yield from root.children(recursive=True)
    except psutil.Error:
        return


def _read(path: str) -> str:
    # os.open spares the buffered file object, half of the cost of so small a read.
    handle = os.open(path, os.O_RDONLY)
    try:
        parts: list[bytes] = []
        while part := os.read(handle, 1 << 16):
            parts.append(part)
        return b"".join(parts).decode("utf-8", "replace")
    finally:
        os.close(handle)
