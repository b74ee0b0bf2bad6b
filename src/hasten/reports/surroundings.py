"""What stands around a measurement: what measuring cost, the machine, and how much of it was in use.

In: a Run. Out: short lines on a sheet. Refuses to judge any of it.
"""

import re
from collections.abc import Iterable

from hasten import format
from hasten.records import Diagnosis, Interval, ResourceSample, Run, SandboxForm
from hasten.reports.sheet import Sheet

_TRADEMARK = re.compile(r"\((?:R|TM)\)|\bCPU (?=@)")

TELLING = 0.1  # an interval that reaches farther tells of the machine's noise, not of what measuring cost


def add_overhead(sheet: Sheet, run: Run, *, step_seconds: float) -> None:
    """Put what measuring cost on the sheet."""
    overhead = run.overhead
    if overhead is None:
        sheet.paragraph(format.NOT_MEASURED, label="Overhead")
        return
    ratio = overhead.ratio
    marked = None if ratio is None else Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1)
    of_record = format.share(overhead.record_seconds / step_seconds if step_seconds > 0 else None)
    marking = f"{format.share_interval(marked)} while marking"
    if marked is not None and marked.high - marked.low > 2 * TELLING and step_seconds > 0:
        own = overhead.marks_per_step * overhead.seconds_per_mark / step_seconds
        marking = f"{format.share(own)} while marking, by the count (measured {format.share_interval(marked)})"
    sheet.paragraph(f"{marking}; notes in the time of record {of_record}", label="Overhead")


SANDBOXES: dict[SandboxForm, str] = {
    "overlay": "overlay: what the script wrote is gone, and its files are as they were",
    "landlock": "landlock: Python's writes were redirected and are gone; the kernel refused all others",
    "redirect": "redirect: Python's writes were redirected and are gone; other programs' are not held back here",
}

TIERS = {"ram": "RAM"}


def add_use(sheet: Sheet, run: Run) -> None:
    """Put on the sheet what was in use while the steps ran: mean cores, most memory, each device."""
    samples = _during_steps(run)
    if not samples:
        return
    machine = run.machine
    tree = format.amount(_mean(sample.tree_cpu for sample in samples))
    others = format.amount(_mean(sample.others_cpu for sample in samples))
    words = [f"{tree} of {format.amount(machine.num_cores)} cores (others {others})"]
    resident = max(sample.resident_bytes for sample in samples)
    words.append(f"{format.size_of(resident, machine.memory_bytes)} memory")
    if (rate := _read_rate(samples)) is not None:
        words.append(f"{format.size_rate(rate)} read")
    sheet.paragraph(", ".join(words), label="In use")
    for device in machine.devices:
        text = _device_use(samples, index=device.index, memory_bytes=device.memory_bytes)
        if text:
            sheet.paragraph(f"GPU {device.index}: {text}")


def add_machine(sheet: Sheet, run: Run) -> None:
    """Put the machine on the sheet, in one line where it fits, and what kept the script's files as they were."""
    sheet.paragraph(", ".join(machine_words(run)), label="Machine")
    if run.sandbox is not None:
        sheet.paragraph(SANDBOXES[run.sandbox], label="Sandbox")


def device_name(run: Run) -> str:
    """The device that the script trains on: "cpu (Intel Xeon)" or "cuda:0 (NVIDIA H200)"."""
    name = run.facts.device
    machine = run.machine
    if name.startswith("cpu"):
        return f"{name} ({_TRADEMARK.sub('', machine.cpu)}, {format.amount(machine.num_cores)} cores)"
    kind, _, index = name.partition(":")
    names = [device.name for device in machine.devices if str(device.index) == (index or "0")]
    return f"{name} ({names[0]})" if names and kind == "cuda" else name


def cpu_against_device(run: Run, diagnosis: Diagnosis) -> str:
    """CPU seconds of the script's processes while steps ran, beside the device's seconds and the clock's."""
    samples = _during_steps(run)
    cores = _mean(sample.tree_cpu for sample in samples)
    if cores is None:
        return format.NOT_MEASURED
    wall = run.steps[-1].start + run.steps[-1].seconds - run.steps[0].start
    cpu = f"CPU {format.seconds(cores * wall)}"
    breakdown = diagnosis.breakdown
    if breakdown.device_seconds is None or breakdown.step_seconds <= 0:
        used = f"{format.amount(cores)} of {format.amount(run.machine.num_cores)} cores"
        return f"{cpu} in {format.seconds(wall)} by the clock: {used}"
    busy = breakdown.device_seconds / breakdown.step_seconds
    device = f"device {format.seconds(busy * wall)} ({format.share(busy)})"
    return f"{cpu}, {device} in {format.seconds(wall)} by the clock"


def _during_steps(run: Run) -> list[ResourceSample]:
    if not run.steps:
        return []
    start, end = run.steps[0].start, run.steps[-1].start + run.steps[-1].seconds
    return [sample for sample in run.resources if start <= sample.at <= end]


def machine_words(run: Run) -> list[str]:
    """The machine in a few words each: its CPU, cores, memory, devices, load and torch."""
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


def cache_lines(run: Run, diagnosis: Diagnosis) -> list[str]:
    """What each tier of a cache holds, and its share of what was asked for; without one, what a full cache would take."""
    loader = max(run.facts.loaders, key=lambda one: one.num_cache_misses or 0, default=None)
    if loader is not None and loader.cache:
        asked = sum(tier.num_hits for tier in loader.cache) + (loader.num_cache_misses or 0)
        lines: list[str] = []
        for tier in loader.cache:
            hits = f"; {format.share(tier.num_hits / asked)} of what was asked for" if asked else ""
            filled = format.size_of(tier.num_bytes, tier.budget_bytes)
            lines.append(f"{TIERS.get(tier.name, tier.name)}: {filled}{hits}")
        return lines
    need = diagnosis.cache
    if need is None:
        return []
    factor = "" if need.k_factor is None else f" = {format.ratio(need.k_factor)} the files"
    fits = format.share(need.fits_share)
    return [f"full cache {format.size(need.total_bytes)}{factor}; {fits} fits in memory now"]
