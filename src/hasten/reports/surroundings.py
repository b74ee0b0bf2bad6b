"""Show what surrounds a measurement: its overhead, the machine, how much of it was in use, and the cache."""

import re
from collections.abc import Iterable

from hasten import format
from hasten.records import Diagnosis, Interval, RemoteReads, ResourceSample, Run, SandboxForm
from hasten.reports.sheet import Sheet

_TRADEMARK = re.compile(r"\((?:R|TM)\)|\bCPU (?=@)")

NOISY = 0.1  # an interval wider than this on either side shows the machine's noise, not the overhead


def add_overhead(sheet: Sheet, run: Run, *, step_seconds: float) -> None:
    """Add the overhead of measuring: of the instrumented steps, and of the hooks that stay on in the others."""
    overhead = run.overhead
    if overhead is None:
        sheet.paragraph(format.NOT_MEASURED, label="Overhead")
        return
    ratio = overhead.ratio
    marked = None if ratio is None else Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1)
    baseline_hooks = format.share(overhead.hook_seconds / step_seconds if step_seconds > 0 else None)
    marking = f"{format.share_interval(marked)} on instrumented steps"
    if marked is not None and marked.high - marked.low > 2 * NOISY and step_seconds > 0:
        own = overhead.marks_per_step * overhead.seconds_per_mark / step_seconds
        marking = f"{format.share(own)} on instrumented steps, estimated (measured {format.share_interval(marked)})"
    sheet.paragraph(f"{marking}; of the baseline hooks {baseline_hooks}", label="Overhead")


SANDBOXES: dict[SandboxForm, str] = {
    "overlay": "overlay: everything that the script changed on disk was discarded",
    "landlock": "landlock: writes from Python were redirected and discarded; the kernel blocked all others",
    "redirect": "redirect: writes from Python were redirected and discarded; writes by other programs cannot be blocked here",
}

TIERS = {"ram": "RAM"}


def add_use(sheet: Sheet, run: Run) -> None:
    """Add what was in use during the measured steps: mean cores, peak memory, read rate, each device."""
    samples = _during_steps(run)
    if not samples:
        return
    machine = run.machine
    tree = format.amount(_mean(sample.tree_cpu for sample in samples))
    others = format.amount(_mean(sample.others_cpu for sample in samples))
    parts = [f"{tree} of {format.amount(machine.num_cores)} cores (other processes {others})"]
    resident = max(sample.resident_bytes for sample in samples)
    parts.append(f"{format.size_of(resident, machine.memory_bytes)} memory")
    if (rate := _read_rate(samples)) is not None:
        parts.append(f"{format.size_rate(rate)} read")
    sheet.paragraph(", ".join(parts), label="Usage")
    for device in machine.devices:
        text = _device_use(samples, index=device.index, memory_bytes=device.memory_bytes)
        if text:
            sheet.paragraph(f"GPU {device.index}: {text}")


def add_machine(sheet: Sheet, run: Run) -> None:
    """Add the machine, and the sandbox that protected the script's files."""
    sheet.paragraph(", ".join(machine_words(run)), label="Machine")
    if run.sandbox is not None:
        sheet.paragraph(SANDBOXES[run.sandbox], label="Sandbox")


def device_name(run: Run) -> str:
    """The device that the script trains on: "cpu (Intel Xeon, 2 cores)" or "cuda:0 (NVIDIA H200)"."""
    name = run.facts.device
    machine = run.machine
    if name.startswith("cpu"):
        return f"{name} ({_TRADEMARK.sub('', machine.cpu)}, {format.amount(machine.num_cores)} cores)"
    kind, _, index = name.partition(":")
    names = [device.name for device in machine.devices if str(device.index) == (index or "0")]
    return f"{name} ({names[0]})" if names and kind == "cuda" else name


def cpu_against_device(run: Run, diagnosis: Diagnosis) -> str:
    """CPU time of the script's processes during the measured steps, with device time and wall time."""
    samples = _during_steps(run)
    cores = _mean(sample.tree_cpu for sample in samples)
    if cores is None:
        return format.NOT_MEASURED
    wall = run.steps[-1].start + run.steps[-1].seconds - run.steps[0].start
    cpu = f"CPU {format.seconds(cores * wall)}"
    breakdown = diagnosis.breakdown
    if breakdown.device_seconds is None or breakdown.step_seconds <= 0:
        used = f"{format.amount(cores)} of {format.amount(run.machine.num_cores)} cores"
        return f"{cpu} in {format.seconds(wall)} of wall time: {used}"
    busy = breakdown.device_seconds / breakdown.step_seconds
    device = f"device {format.seconds(busy * wall)} ({format.share(busy)})"
    return f"{cpu}, {device} in {format.seconds(wall)} of wall time"


def _during_steps(run: Run) -> list[ResourceSample]:
    if not run.steps:
        return []
    start, end = run.steps[0].start, run.steps[-1].start + run.steps[-1].seconds
    return [sample for sample in run.resources if start <= sample.at <= end]


def machine_words(run: Run) -> list[str]:
    """Short descriptions of the CPU, cores, memory, devices, load and torch."""
    machine = run.machine
    cores = format.amount(machine.num_cores)
    if machine.num_cores != machine.num_cores_present:
        cores += f" of {machine.num_cores_present}"
    words = [_TRADEMARK.sub("", machine.cpu), f"{cores} cores", f"{format.size(machine.memory_bytes)} memory"]
    names = [f"{device.name} {format.size(device.memory_bytes)}" for device in machine.devices]
    words += [f"{names.count(name)}x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    if not names:
        words.append("no GPU" if run.facts.device.startswith("cpu") else run.facts.device)
    if machine.load is not None:
        words.append(f"load {format.amount(machine.load)}")
    build = f"CUDA {machine.torch_cuda}" if machine.torch_cuda else "CPU build"
    words.append(f"torch {machine.torch} ({build})" if machine.torch else "no torch")
    return words


def _device_use(samples: list[ResourceSample], *, index: int, memory_bytes: int) -> str:
    seen = [sample.devices[index] for sample in samples if index < len(sample.devices)]
    used = _mean(sample.utilization for sample in seen)
    memory = [sample.memory_used_bytes for sample in seen if sample.memory_used_bytes is not None]
    hottest = [sample.temperature_celsius for sample in seen if sample.temperature_celsius is not None]
    power = _mean(sample.power_watts for sample in seen)
    words = [f"used {format.share(used)}"] if used is not None else []
    words += [f"{format.size_of(max(memory), memory_bytes)} memory"] if memory else []
    words += [format.celsius(max(hottest))] if hottest else []
    words += [format.watts(power)] if power is not None else []
    return ", ".join(words)


def _read_rate(samples: list[ResourceSample]) -> float | None:
    first, last = samples[0], samples[-1]
    if first.read_bytes is None or last.read_bytes is None or last.at <= first.at:
        return None
    return (last.read_bytes - first.read_bytes) / (last.at - first.at)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def remote_lines(reads: RemoteReads | None) -> list[str]:
    """How often remote objects were read from the disk and downloaded, and which requests had to be made again."""
    if reads is None:
        return []
    line = f"remote objects: {format.count(reads.num_hits)} read from the disk"
    line += f"; {format.count(reads.num_downloads)} downloaded ({format.size(reads.num_bytes)})"
    line += f"; {format.count(reads.num_direct)} read directly" if reads.num_direct else ""
    return [line + (f"; {format.count(reads.num_retries)} requests retried" if reads.num_retries else "")]


def cache_lines(run: Run, diagnosis: Diagnosis) -> list[str]:
    """What each cache tier holds and its hit rate; without a cache, what a full one would need."""
    loader = max(run.facts.loaders, key=lambda one: one.num_cache_misses or 0, default=None)
    if loader is not None and loader.cache:
        asked = sum(tier.num_hits for tier in loader.cache) + (loader.num_cache_misses or 0)
        lines: list[str] = []
        for tier in loader.cache:
            hits = f"; {format.share(tier.num_hits / asked)} hit rate" if asked else ""
            filled = format.size_of(tier.num_bytes, tier.budget_bytes)
            lines.append(f"{TIERS.get(tier.name, tier.name)}: {filled}{hits}")
        return [*lines, *remote_lines(loader.remote)]
    need = diagnosis.cache
    if need is None:
        return []
    factor = "" if need.k_factor is None else f" ({format.ratio(need.k_factor)} the files)"
    fits = format.share(need.fits_share)
    return [f"a full cache needs {format.size(need.total_bytes)}{factor}; {fits} fits in memory now"]
