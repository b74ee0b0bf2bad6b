"""CPU time and memory of the whole machine, within the limits of the process's cgroup."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from hasten.cgroup import CgroupFolders, read_memory, read_throttled_seconds


@dataclass(frozen=True)
class BoxCounters:
    """Core-seconds since the machine started, and current bytes. None: unknown."""

    busy_seconds: float
    stolen_seconds: float | None  # by the hypervisor
    throttled_seconds: float | None  # by the cgroup's quota
    available_bytes: int
    page_cache_bytes: int | None
    swap_used_bytes: int


def read_box(cpu_group: CgroupFolders | None, memory_group: CgroupFolders | None) -> BoxCounters:
    """The current counters."""
    times, memory, limit = psutil.cpu_times(), psutil.virtual_memory(), read_memory(memory_group)
    cached = getattr(memory, "cached", None)
    return BoxCounters(
        busy_seconds=busy_of(times),
        stolen_seconds=getattr(times, "steal", None),
        throttled_seconds=read_throttled_seconds(cpu_group),
        available_bytes=memory.available if limit is None else min(memory.available, limit.available),
        # Shared memory counts as cached, but cannot be reclaimed.
        page_cache_bytes=None if cached is None else max(0, cached + memory.buffers - memory.shared),
        swap_used_bytes=psutil.swap_memory().used,
    )


def busy_of(times: object) -> float:
    """Busy core-seconds in psutil's `cpu_times`. Waiting for a disk does not count."""
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
