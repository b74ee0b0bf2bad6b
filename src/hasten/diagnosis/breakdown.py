"""Where the mean step goes.

In: the steps of a Run. Out: a Breakdown whose phases and unaccounted time sum to the step. Refuses to judge.

The time of record comes from the unmarked steps, the shares of the phases from the marked ones, scaled to it. What
does not belong to every step (an epoch's start, validation, a checkpoint) is spread over the steps between two of
them: over the epoch's length where that is known, for a short window may hold too many or too few.

An epoch's start costs what its first step takes longer than the others, in `forward` too: workers that start and fill
their queue take the cores from the model. What the script's own lines take there stays theirs.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from hasten.records import PHASES, RARE, Breakdown, Interval, Phase, Run, Step
from hasten.stats import mean_at_size, mean_interval, typical_size

MANY_MARKS = 100  # a step
ROUNDING = 1e-9  # seconds: sums of phases differ from the step by their last bits
SCRIPT = ("script", "sync", "logging")


def break_down(run: Run) -> Breakdown:
    """Sum up the steps of a run. Raises ValueError when it has none."""
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
    means = _stretches(plain, whole=any(s.device for s in marked))
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
    """Seconds of a regular step; of one with the typical number of samples, where batches differ."""
    return mean_at_size([_regular(s) for s in steps], [s.num_samples for s in steps], typical=typical)


def _phases(within: Sequence[Step], regular: float, run: Run) -> dict[Phase, float | None]:
    """Mean seconds of each regular phase, scaled to the time of record; None where it was never seen."""
    marked = [s for s in within if s.marked]
    if not marked:
        waits = [s.phases["data_wait"] for s in within if "data_wait" in s.phases]
        return {**dict.fromkeys(PHASES), "data_wait": sum(waits) / len(within) if waits else None}
    mean = statistics.fmean(_regular(s) for s in marked)
    scripted = sum(s.phases.get("script", 0.0) for s in marked) / len(marked)
    # Very many marks stand in the script's own lines (a tensor read in a loop), and so does what they cost.
    many = run.overhead is not None and run.overhead.marks_per_step > MANY_MARKS
    excess = min(max(0.0, mean - regular), scripted) if many else 0.0
    scale = regular / (mean - excess) if mean > 0 else 1.0
    phases: dict[Phase, float | None] = {}
    for phase in PHASES:
        if phase not in RARE:
            times = [s.phases[phase] for s in marked if phase in s.phases]
            spent = sum(times) / len(marked) - (excess if phase == "script" else 0.0)
            phases[phase] = scale * spent if times else None
        else:
            phases[phase] = None
    return phases


def _rare_seconds(run: Run, phase: Phase) -> float | None:
    """Seconds a step of what happens once in a while; None where it never happened."""
    times = [s.phases[phase] for s in run.steps if s.phases.get(phase, 0.0) > 0.0]
    return statistics.fmean(times) * _how_often(run, phase, len(times)) if times else None


def _how_often(run: Run, phase: Phase, count: int) -> float:
    """Times a step, of something that happened `count` times in the window."""
    every = run.facts.steps_per_epoch
    observed = count / len(run.steps)
    if every is None:
        return observed
    # Fewer steps than an epoch were measured, yet its end was among them: its length says how seldom that is.
    few = count < 3 if phase == "epoch_start" else count == 1 and len(run.steps) < every
    return 1 / every if few else observed


def _longer_first_steps(
    run: Run, within: Sequence[Step], regular: float, typical: float | None
) -> tuple[float, dict[Phase, float]]:
    """Seconds a step that epochs' first steps take longer than others, and those of the script's own among them.

    What more samples take, where a first batch is larger than the others, is not among them.
    """
    first = [s for s in run.steps if s.starts_epoch]
    often = _how_often(run, "epoch_start", len(first))
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


def _stretches(plain: Sequence[Step], *, whole: bool) -> list[float]:
    """Mean seconds of a step in up to twelve stretches.

    `whole`: in each stretch as it was measured, at whose ends the device had caught up. A single step of the host says
    nothing there: it asks, and is done at once, or waits for many steps' work.
    """
    size = max(1, len(plain) // 12)
    parts = [plain[i : i + size] for i in range(0, len(plain) - size + 1, size)]
    if whole:
        numbered = itertools.groupby(enumerate(plain), key=lambda one: one[1].index - one[0])
        parts = [[step for _, step in group] for _, group in numbered]
    return [statistics.fmean(_regular(s) for s in part) for part in parts]


def _spread(means: Sequence[float], total: float) -> Interval | None:
    """95% interval of the mean, by the means of stretches."""
    if len(means) < 2:
        return None
    estimate = mean_interval(means)
    shift = total - estimate.value
    return Interval(value=total, low=max(0.0, estimate.low + shift), high=estimate.high + shift)


def _device(marked: Sequence[Step], total: float) -> tuple[float | None, dict[Phase, float]]:
    """Seconds a step that the device waited for data, and was busy with each phase; nothing on a CPU."""
    seen = [s for s in marked if s.device]
    if not seen:
        return None, {}
    phases: dict[Phase, float] = {
        p: sum(s.device.get(p, 0.0) for s in seen) / len(seen) for s in seen for p in s.device
    }
    wait = statistics.fmean(
        max(0.0, min(s.phases.get("data_wait", 0.0), s.seconds - sum(s.device.values()))) for s in seen
    )
    most = min(1.0, total / max(sum(phases.values()), 1e-9))  # marked steps may be longer, and nothing is busy twice
    return wait, {phase: most * seconds for phase, seconds in phases.items()}


def _waited(marked: Sequence[Step]) -> float:
    seen = [s.device_waited for s in marked if s.device]
    return statistics.fmean(seen) if seen else 0.0
