"""What a process and all its descendants use. Linux: read from /proc.

Refuses to know what they run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil


def descendants(pid: int) -> list[psutil.Process]:
    """The process and all below it; none where it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds() -> float:
    """CPU time that this process and its descendants have taken, those that live and those that were waited for.

    The kernel gives another process's times in hundredths of a second: windows are to be far longer.
    """
    total = time.process_time()
    for index, process in enumerate(descendants(psutil.Process().pid)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.children_user + times.children_system
        total += times.user + times.system if index else 0.0
    return total


def written_bytes() -> int:
    """What this process and its living descendants have written to files: data fetched anew, where a cache is files."""
    return sum(_written(process) for process in descendants(psutil.Process().pid))


def _written(process: psutil.Process) -> int:
    try:
        return process.io_counters().write_bytes
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def pss_bytes(pid: int) -> int:
    """Proportional set size of the tree: shared pages are counted once, shared among those who map them.

    Pages of a memory file that nobody has mapped are not seen.
    """
    return sum(kilobytes for process in descendants(pid) for kilobytes in _pss_kilobytes(process.pid)) * 1024


def _pss_kilobytes(pid: int) -> Iterator[int]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return
    yield from (int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class MemoryWatch:
    """Samples the tree's memory until told to stop; knows the peak and what the sampling itself took."""

    def __init__(self, pid: int, *, interval: float = 0.5) -> None:
        self.peak_bytes = 0
        self.cpu_seconds = 0.0
        self._pid, self._interval = pid, interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(self._interval):
            self.peak_bytes = max(self.peak_bytes, pss_bytes(self._pid))
            self.cpu_seconds = time.thread_time()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
