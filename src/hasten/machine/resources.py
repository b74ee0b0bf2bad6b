"""Sample the machine over time, on a thread outside the measured process, and report what the sampling cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType

import psutil

from hasten.cgroup import CgroupFolders, find_cgroup, read_memory, read_throttled_seconds
from hasten.devices.nvml import Nvml
from hasten.machine.processes import ProcessCounters, ProcessTree, RisingCounter, read_pss
from hasten.records import DeviceSample, ResourceSample

# Reading the PSS walks the process's page tables under its memory lock, so it is done rarely, and less often the longer it
# takes.
PSS_INTERVAL = 5.0
PSS_SHARE = 0.002
PSS_MOST_SHARE = 0.01  # share of the time, while processes start and end


@dataclass(frozen=True)
class TreeCounters:
    """The process tree at one point in time; counters since its start. None: unknown on this system."""

    cpu_seconds: float
    minor_faults: int | None
    major_faults: int | None
    read_bytes: int | None
    written_bytes: int | None
    resident_bytes: int
    num_processes: int


@dataclass(frozen=True)
class Reading:
    """All counters at one point in time. `own_cpu` is the CPU time of hasten's own process."""

    at: float
    tree: TreeCounters
    box: BoxCounters
    own_cpu: float


_COUNTERS = ("cpu_seconds", "minor_faults", "major_faults", "read_bytes", "written_bytes")


class TreeMeter:
    """Sums the counters of a process tree so that they never decrease."""

    def __init__(self) -> None:
        self._counters = {name: RisingCounter() for name in _COUNTERS}
        self._shared_correction: int | None = None

    def add_up(
        self, processes: Collection[ProcessCounters], *, pss: int | None, has_changed: bool = False
    ) -> TreeCounters:
        """`pss` is the proportional set size, read now; None when it was not read this time.

        `has_changed`: processes came or went since it was.
        """

        def total(name: str) -> int | None:
            known = [value for one in processes if (value := getattr(one, name)) is not None]
            return int(self._counters[name].feed(sum(known))) if known else None

        return TreeCounters(
            cpu_seconds=self._counters["cpu_seconds"].feed(sum(one.cpu_seconds for one in processes)),
            minor_faults=total("minor_faults"),
            major_faults=total("major_faults"),
            read_bytes=total("read_bytes"),
            written_bytes=total("written_bytes"),
            resident_bytes=self._resident(processes, pss, has_changed),
            num_processes=sum(one.is_alive for one in processes),
        )

    def _resident(self, processes: Collection[ProcessCounters], pss: int | None, has_changed: bool) -> int:
        private = sum(one.resident_bytes - one.shared_bytes for one in processes)
        if pss is not None:
            # Pages shared after a fork count as private in every process, so the correction can be negative.
            self._shared_correction = pss - private
            return pss
        if self._shared_correction is None:
            return private + max((one.shared_bytes for one in processes), default=0)
        # Pages shared with processes that have ended now belong to the others: at least as much as the largest has.
        least = max((one.resident_bytes for one in processes), default=0) if has_changed else 0
        return max(least, private + self._shared_correction)


def sample_between(before: Reading, now: Reading, *, devices: tuple[DeviceSample, ...] = ()) -> ResourceSample | None:
    """The sample between two readings; None if no time passed between them."""
    seconds = now.at - before.at
    if seconds <= 0:
        return None

    def rate(start: float | None, end: float | None) -> float | None:
        return None if start is None or end is None else max(0.0, end - start) / seconds

    tree = rate(before.tree.cpu_seconds, now.tree.cpu_seconds) or 0.0
    machine = rate(before.box.busy_seconds, now.box.busy_seconds) or 0.0
    own = rate(before.own_cpu, now.own_cpu) or 0.0
    stolen = rate(before.box.stolen_seconds, now.box.stolen_seconds)
    throttled = rate(before.box.throttled_seconds, now.box.throttled_seconds)
    taken = [part for part in (stolen, throttled) if part is not None]
    return ResourceSample(
        at=now.at,
        tree_cpu=tree,
        machine_cpu=machine,
        others_cpu=max(0.0, machine - tree - own),
        stolen_cpu=sum(taken) if taken else None,
        throttled_cpu=throttled,
        resident_bytes=now.tree.resident_bytes,
        available_bytes=now.box.available_bytes,
        page_cache_bytes=now.box.page_cache_bytes,
        swap_used_bytes=now.box.swap_used_bytes,
        read_bytes=now.tree.read_bytes,
        written_bytes=now.tree.written_bytes,
        minor_faults=now.tree.minor_faults,
        major_faults=now.tree.major_faults,
        num_processes=now.tree.num_processes,
        devices=devices,
    )


class ResourceSampler:
    """Samples the process tree of `pid` and the machine while it is entered.

    `clock` gives seconds on the run's clock; `interval` is seconds between samples. Afterwards `samples`
    holds what was seen, `seen` the (pid, creation time) of every process that was ever in the tree (for
    what has to end what it left behind), `cpu_seconds` what sampling cost, and `failure` why it stood
    aside, if it did.
    """

    def __init__(self, pid: int, *, clock: Callable[[], float], interval: float = 0.5) -> None:
        assert interval > 0
        self.samples: list[ResourceSample] = []
        self.cpu_seconds = 0.0
        self.failure: str | None = None
        self._clock = clock
        self._interval = interval
        self._tree = ProcessTree(pid)
        self._groups = find_cgroup("cpu", pid=pid), find_cgroup("memory", pid=pid)
        self._meter = TreeMeter()
        self._nvml: Nvml | None = None
        self._pss_of: frozenset[int] = frozenset()
        """The processes whose PSS was read last."""
        self._pss_at = self._pss_took = 0.0
        self._before: Reading | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hasten-resources", daemon=True)

    @property
    def seen(self) -> set[tuple[int, float]]:
        """(pid, creation time) of every process that was ever in the tree."""
        return set(self._tree.seen)

    def __enter__(self) -> ResourceSampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        # A stuck driver must not delay the end of the run; the thread is a daemon.
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        started = time.thread_time()
        try:
            self._nvml = Nvml()
            while True:
                self.take()
                self.cpu_seconds = time.thread_time() - started
                if self._stop.wait(self._interval):
                    break
            self.take()
        except Exception as error:
            # Sampling must not break the run: stop it and report that.
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            if self._nvml is not None:
                self._nvml.close()
            self.cpu_seconds = time.thread_time() - started

    def take(self) -> None:
        """Take one sample. The first call only records the counters."""
        processes = self._tree.read()
        if not any(one.is_alive for one in processes.values()):
            return  # it has ended: another sample would show an idle machine
        pss = self._pss(processes)
        now = Reading(
            at=self._clock(),
            tree=self._meter.add_up(processes.values(), pss=pss, has_changed=processes.keys() != self._pss_of),
            box=read_box(*self._groups),
            own_cpu=time.process_time(),
        )
        if self._before is not None:
            devices = self._nvml.sample() if self._nvml is not None else ()
            sample = sample_between(self._before, now, devices=devices)
            if sample is not None:
                self.samples.append(sample)
        self._before = now

    def _pss(self, processes: Collection[int]) -> int | None:
        """Whether to read the PSS now: rarely, but sooner if processes started or ended, which changes what is shared."""
        started, there = time.monotonic(), frozenset(processes)
        rest = (
            max(PSS_INTERVAL, self._pss_took / PSS_SHARE)
            if there == self._pss_of
            else self._pss_took / PSS_MOST_SHARE
        )
        if started < self._pss_at + rest:
            return None
        pss = read_pss(processes)
        self._pss_of, self._pss_at = there, time.monotonic()
        self._pss_took = self._pss_at - started
        return pss


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
