"""Where a step's time goes, and the least that it could take."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from hasten import format
from hasten.records import (
    PHASES,
    RARE,
    Breakdown,
    CacheNeed,
    Ceiling,
    Interval,
    Intervention,
    LoaderFacts,
    Phase,
    Run,
    Step,
    WhatIf,
)
from hasten.stats import mean_at_size, mean_interval, typical_size

MANY_MARKS = 100  # per step
ROUNDING = 1e-9  # seconds; sums of phases differ from the step by floating-point rounding
SCRIPT = ("script", "sync", "logging")


def break_down(run: Run) -> Breakdown:
    """Break down the mean step of a run. Raises ValueError if it has no steps."""
    if not run.steps:
        raise ValueError("a run without steps has no breakdown")
    within = [s for s in run.steps if not s.starts_epoch] or list(run.steps)
    plain = [s for s in within if not s.marked] or within
    marked = [s for s in within if s.marked]
    typical = typical_size(s.num_samples for s in run.steps)
    regular = _mean_regular(plain, typical)
    phases = _phases(within, regular, run)
    rare: dict[Phase, float] = {p: s for p in RARE if (s := _rare_seconds(run, p)) is not None}
    if len(within) < len(run.steps):
        rare["epoch_start"], own = _longer_first_steps(run, within, regular, typical)
        phases.update({phase: (phases[phase] or 0.0) + seconds for phase, seconds in own.items()})
        regular += sum(own.values())
    phases.update(rare)
    known = sum(v for v in phases.values() if v is not None)
    total = regular + sum(rare.values())
    samples = _samples_per_step(run.steps)
    means = _segments(plain, whole=any(s.device for s in marked))
    wait, device = _device(marked, total)
    return Breakdown(
        step_seconds=total,
        median_seconds=statistics.median(means if device else [s.seconds for s in plain]),
        spread=_spread(means, total),
        phases=phases,
        unaccounted=total - known if total - known > ROUNDING else 0.0,
        samples_per_second=samples / total if samples else None,
        num_steps=len(run.steps),
        device_seconds=sum(device.values()) if device else None,
        device_wait=wait,
        device_phases=device,
        device_waited=min(_waited(marked), sum(device.values())),
    )


def _regular(step: Step) -> float:
    return step.seconds - sum(step.phases.get(p, 0.0) for p in RARE)


def _mean_regular(steps: Sequence[Step], typical: float | None) -> float:
    """Mean seconds of a regular step, or of one with the typical number of samples if batches differ in size."""
    return mean_at_size([_regular(s) for s in steps], [s.num_samples for s in steps], typical=typical)


def _phases(within: Sequence[Step], regular: float, run: Run) -> dict[Phase, float | None]:
    """Mean seconds of each regular phase, scaled to the uninstrumented step time; None if it was never seen."""
    marked = [s for s in within if s.marked]
    alone = not any("communication" in s.phases for s in marked)  # nobody misses what there is not
    known: list[Phase] = [phase for phase in PHASES if not (alone and phase == "communication")]
    if not marked:
        waits = [s.phases["data_wait"] for s in within if "data_wait" in s.phases]
        return {**dict.fromkeys(known), "data_wait": sum(waits) / len(within) if waits else None}
    mean = statistics.fmean(_regular(s) for s in marked)
    scripted = sum(s.phases.get("script", 0.0) for s in marked) / len(marked)
    # Very many marks come from the script's own lines (a tensor read in a loop), and so does their overhead.
    many = run.overhead is not None and run.overhead.marks_per_step > MANY_MARKS
    excess = min(max(0.0, mean - regular), scripted) if many else 0.0
    scale = regular / (mean - excess) if mean > 0 else 1.0
    phases: dict[Phase, float | None] = {}
    for phase in known:
        if phase not in RARE:
            times = [s.phases[phase] for s in marked if phase in s.phases]
            spent = sum(times) / len(marked) - (excess if phase == "script" else 0.0)
            phases[phase] = scale * spent if times else None
        else:
            phases[phase] = None
    return phases


def _rare_seconds(run: Run, phase: Phase) -> float | None:
    """Mean seconds per step of an infrequent phase; None if it never occurred."""
    times = [s.phases[phase] for s in run.steps if s.phases.get(phase, 0.0) > 0.0]
    if not times:
        return None
    if phase == "epoch_start":
        return statistics.fmean(times) * _epochs_per_step(run, len(times))
    every = {"validation": run.facts.steps_per_validation, "checkpoint": run.facts.steps_per_checkpoint}[phase]
    # It comes less often than in the window only where it came once, in less than an epoch.
    return sum(times) / max(len(run.steps), every or 0.0)


def _epochs_per_step(run: Run, starts: int) -> float:
    """Epochs per step, where so many were seen to start; of few, the epoch's length says more."""
    every = run.facts.steps_per_epoch
    return starts / len(run.steps) if every is None or starts >= 3 else 1 / every


def _longer_first_steps(
    run: Run, within: Sequence[Step], regular: float, typical: float | None
) -> tuple[float, dict[Phase, float]]:
    """Extra seconds per step from epochs' first steps, without and by the phases of the script's own code.

    The time for additional samples in a larger first batch is not included.
    """
    first = [s for s in run.steps if s.starts_epoch]
    often = _epochs_per_step(run, len(first))
    taken = statistics.fmean(s.phases.get("epoch_start", 0.0) + _regular(s) for s in first)
    if typical is not None:
        regular *= statistics.fmean(s.num_samples or 0 for s in first) / typical
    longer = max(0.0, often * (taken - regular))
    marked, others = [s for s in first if s.marked], [s for s in within if s.marked]
    own: dict[Phase, float] = {}
    for phase in SCRIPT if marked and others else ():
        more, usual = (statistics.fmean(s.phases.get(phase, 0.0) for s in steps) for steps in (marked, others))
        seconds = min(often * (more - usual), longer)
        if seconds > 0:
            own[phase] = seconds
            longer -= seconds
    return longer, own


def _samples_per_step(steps: Sequence[Step]) -> float | None:
    known = [s.num_samples for s in steps if s.num_samples is not None]
    return statistics.fmean(known) if known else None


def _segments(plain: Sequence[Step], *, whole: bool) -> list[float]:
    """Mean seconds of a step in up to twelve segments.

    `whole` keeps the segments as they were measured, with the device synchronized at their ends. On an asynchronous device
    the host time of a single step means nothing: it only queues work, or waits for the work of many steps.
    """
    size = max(1, len(plain) // 12)
    parts = [plain[i : i + size] for i in range(0, len(plain) - size + 1, size)]
    if whole:
        numbered = itertools.groupby(enumerate(plain), key=lambda one: one[1].index - one[0])
        parts = [[step for _, step in group] for _, group in numbered]
    return [statistics.fmean(_regular(s) for s in part) for part in parts]


def _spread(means: Sequence[float], total: float) -> Interval | None:
    """95% interval of the mean, from the means of segments."""
    if len(means) < 2:
        return None
    estimate = mean_interval(means)
    shift = total - estimate.value
    return Interval(value=total, low=max(0.0, estimate.low + shift), high=estimate.high + shift)


def _device(marked: Sequence[Step], total: float) -> tuple[float | None, dict[Phase, float]]:
    """Seconds per step that the device waited for data, and was busy with each phase; (None, {}) on a CPU."""
    seen = [s for s in marked if s.device]
    if not seen:
        return None, {}
    phases: dict[Phase, float] = {
        p: sum(s.device.get(p, 0.0) for s in seen) / len(seen) for s in seen for p in s.device
    }
    wait = statistics.fmean(
        max(0.0, min(s.phases.get("data_wait", 0.0), s.seconds - sum(s.device.values()))) for s in seen
    )
    most = min(
        1.0, total / max(sum(phases.values()), 1e-9)
    )  # instrumented steps may be longer; the device cannot be busy for more than the step
    return wait, {phase: most * seconds for phase, seconds in phases.items()}


def _waited(marked: Sequence[Step]) -> float:
    seen = [s.device_waited for s in marked if s.device]
    return statistics.fmean(seen) if seen else 0.0


USABLE_MEMORY = 0.8  # share of the available memory that a cache may use


def intervention(run: Run, name: str) -> Intervention | None:
    """The intervention of this name, if it gave a ratio."""
    return next((i for i in run.interventions if i.name == name and i.ratio is not None), None)


def train_loader(run: Run) -> LoaderFacts | None:
    """The training loader; None without one."""
    return next((x for x in run.facts.loaders if x.role == "train"), None)


def find_ceiling(run: Run, breakdown: Breakdown) -> Ceiling:
    """Step times with instant data loading and instant copies, and of the data loader alone."""
    replay, device = intervention(run, "replay"), intervention(run, "device replay")
    drain = next((i for i in run.interventions if i.name == "drain" and i.candidate_seconds is not None), None)
    batches = statistics.fmean([s.num_batches for s in run.steps] or [1.0])
    # Replay also saves the epoch's start, which is the loader's work; validation and checkpoints stay.
    start = breakdown.phases.get("epoch_start") or 0.0
    rare = sum(breakdown.phases.get(p) or 0.0 for p in ("validation", "checkpoint"))
    regular = breakdown.step_seconds - start - rare
    free = replay.ratio.value * regular + rare if replay is not None and replay.ratio is not None else None
    copies = None
    if replay is not None and replay.ratio is not None and device is not None and device.ratio is not None:
        # Measured relative to replayed batches; to copy nothing never takes longer.
        copies = min(1.0, device.ratio.value) * replay.ratio.value * regular + rare
    return Ceiling(
        free_batches=free,
        free_copies=copies,
        loader_alone=drain.candidate_seconds * batches if drain is not None and drain.candidate_seconds else None,
        headroom=max(0.0, breakdown.step_seconds - free) if free is not None else None,
    )


def cache_need(run: Run) -> CacheNeed | None:
    """What a full cache of decoded samples needs; None without a loader of known length."""
    train = train_loader(run)
    if train is None or not train.num_samples or train.in_memory:
        return None
    per_sample = train.decoded_bytes_per_sample
    if per_sample is None and train.bytes_per_batch and train.batch_size:
        per_sample = train.bytes_per_batch / train.batch_size
    if not per_sample:
        return None
    total = per_sample * train.num_samples
    available = USABLE_MEMORY * run.machine.memory_available_bytes
    return CacheNeed(
        bytes_per_sample=per_sample,
        num_samples=train.num_samples,
        total_bytes=total,
        k_factor=per_sample / train.file_bytes if train.file_bytes else None,
        fits_share=min(1.0, available / total),
    )


def what_ifs(run: Run, breakdown: Breakdown, ceiling: Ceiling) -> tuple[WhatIf, ...]:
    """Predicted step times after an upgrade, for those that would save at least 3%."""
    found = [
        _faster_disk(run, breakdown),
        _more_memory(run, breakdown, ceiling),
    ]
    return tuple(w for w in found if w is not None and w.step_seconds < 0.97 * breakdown.step_seconds)


def _faster_disk(run: Run, breakdown: Breakdown) -> WhatIf | None:
    """The loader's waiting time for the disk: bytes read from it, times the extra time of cold reads per byte."""
    read, train = run.file_read, train_loader(run)
    inside = [s for s in run.resources if s.at >= run.steps[0].start and s.read_bytes is not None]
    if read is None or read.cold_seconds is None or train is None or len(inside) < 2 or not read.num_bytes:
        return None
    first, last = inside[0], inside[-1]
    from_disk = ((last.read_bytes or 0) - (first.read_bytes or 0)) / max(last.at - first.at, 1e-9)
    per_byte = max(0.0, read.cold_seconds - read.warm_seconds) / read.num_bytes
    waiting = from_disk * breakdown.step_seconds * per_byte / max(1, train.num_workers)
    return WhatIf(
        change="a disk without read latency",
        step_seconds=breakdown.step_seconds - min(waiting, breakdown.phases.get("data_wait") or 0.0),
        because=f"{from_disk / 1e6:.0f} MB/s are read from the disk, and cold reads take {1e9 * per_byte:.2g} s/GB longer; "
        "it is assumed that training waits for all of that",
    )


def _more_memory(run: Run, breakdown: Breakdown, ceiling: Ceiling) -> WhatIf | None:
    need, train = cache_need(run), train_loader(run)
    if need is None or train is None or ceiling.headroom is None:
        return None
    total = sum(s.seconds for s in train.stages)
    kept = sum(s.seconds for s in train.stages if s.name in ("read", "decode"))
    if not total or not kept:
        return None
    saved = min(ceiling.headroom, ceiling.headroom * kept / total)
    place = "fits in memory" if need.fits_share >= 1.0 else f"needs {format.size(need.total_bytes)} of memory"
    return WhatIf(
        change=f"a full cache of decoded samples ({place})",
        step_seconds=breakdown.step_seconds - saved,
        because=f"reading and decoding are {format.share(kept / total)} of the loader's work; it is assumed that the wait "
        "shrinks as the work does",
    )
