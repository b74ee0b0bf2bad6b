"""The whole machine's CPU time and memory, as counters.

In: the texts of /proc/stat and /proc/meminfo, or psutil where there are none. Out: BoxCounters. Refuses to
know which process used what.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from hasten.cgroup import (
    CgroupMemory,
    find_cgroup,
    parse_counters,
    read_memory,
    read_throttled_seconds,
)


@dataclass(frozen=True)
class BoxCounters:
    """Core-seconds since the machine started, and bytes now."""

    busy_seconds: float
    stolen_seconds: float | None  # by the hypervisor
    throttled_seconds: float | None  # by the cgroup's quota
    available_bytes: int
    page_cache_bytes: int | None
    swap_used_bytes: int


@dataclass(frozen=True)
class MemoryCounters:
    """What a /proc/meminfo says, in bytes."""

    available: int
    page_cache: int
    swap_used: int


def parse_cpu(stat: str, *, ticks_per_second: float) -> tuple[float, float]:
    """Busy and stolen core-seconds from a /proc/stat. Waiting for a disk is not busy."""
    words = stat.split("\n", 1)[0].split()
    numbers = [int(word) / ticks_per_second for word in words[1:]] + [0.0] * 8
    user, nice, system, _idle, _wait, irq, softirq, stolen = numbers[:8]
    return user + nice + system + irq + softirq, stolen


def parse_meminfo(text: str) -> MemoryCounters:
    """Available memory, file pages in memory (the kernel's count less shared memory), and swap in use."""
    kib = parse_counters(text)
    cache = kib.get("Cached", 0) + kib.get("Buffers", 0) - kib.get("Shmem", 0)
    # Kernels before 3.14 do not tell what is available.
    available = kib.get("MemAvailable", kib.get("MemFree", 0) + cache)
    swap = kib.get("SwapTotal", 0) - kib.get("SwapFree", 0)
    return MemoryCounters(available * 1024, max(0, cache) * 1024, max(0, swap) * 1024)


def within(memory: MemoryCounters, limit: CgroupMemory | None) -> MemoryCounters:
    """The same as seen from inside a cgroup that has a memory limit."""
    if limit is None:
        return memory
    return MemoryCounters(min(memory.available, limit.available), limit.page_cache, memory.swap_used)


class Box:
    """Reads the machine again and again; the cgroup folders of `pid` are found once."""

    def __init__(self, pid: int) -> None:
        self._cpu_group = find_cgroup("cpu", pid=pid)
        self._memory_group = find_cgroup("memory", pid=pid)
        self._has_proc = Path("/proc/stat").exists() and Path("/proc/meminfo").exists()
        self._ticks = float(os.sysconf("SC_CLK_TCK")) if self._has_proc else 100.0

    def read(self) -> BoxCounters:
        """The counters now."""
        if not self._has_proc:
            return _read_psutil()
        busy, stolen = parse_cpu(Path("/proc/stat").read_text(encoding="utf-8"), ticks_per_second=self._ticks)
        memory = within(
            parse_meminfo(Path("/proc/meminfo").read_text(encoding="utf-8")), read_memory(self._memory_group)
        )
        return BoxCounters(
            busy_seconds=busy,
            stolen_seconds=stolen,
            throttled_seconds=read_throttled_seconds(self._cpu_group),
            available_bytes=memory.available,
            page_cache_bytes=memory.page_cache,
            swap_used_bytes=memory.swap_used,
        )


def _read_psutil() -> BoxCounters:
    times, memory = psutil.cpu_times(), psutil.virtual_memory()
    return BoxCounters(
        busy_seconds=times.user + times.system + getattr(times, "nice", 0.0),
        stolen_seconds=None,
        throttled_seconds=None,
        available_bytes=memory.available,
        page_cache_bytes=None,
        swap_used_bytes=psutil.swap_memory().used,
    )
