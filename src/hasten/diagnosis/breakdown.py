"""Where the mean step goes.

In: the steps of a Run. Out: a Breakdown whose phases and unaccounted time sum to the step. Refuses to judge.

The time of record comes from the unmarked steps, the shares of the phases from the marked ones, scaled to it. What
does not belong to every step (an epoch's start, validation, a checkpoint) is spread over the steps between two of
them: over the epoch's length where that is known, for a short window may hold too many or too few.

An epoch's start costs what its first step takes longer than the others, whatever phase that shows in: workers that
start and fill their queue take the cores from the model, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hasten.records import PHASES, Breakdown, Interval, Run, Step
from hasten.stats import mean_interval

MANY_MARKS = 100  # a step
ROUNDING = 1e-9  # seconds: sums of phases differ from the step by their last bits
RARE = ("epoch_start", "validation", "checkpoint")


def break_down(run: Run) -> Breakdown:
    """Sum up the steps of a run. Raises ValueError when it has none."""
    if not run.steps:
        raise ValueError("a run without steps has no breakdown")
    within = _within_epochs(run.steps)
    plain = [s for s in within if not s.marked] or within
    marked = [s for s in within if s.marked]
    regular = statistics.fmean(_regular(s) for s in plain)
    rare = {p: s for p in RARE if (s := _rare_seconds(run, p, regular)) is not None}
    phases = _phases(within, regular, run)
    phases.update(rare)
    known = sum(v for v in phases.values() if v is not None)
    total = regular + sum(rare.values())
    samples = _samples_per_step(run.steps)
    wait, device = _device(marked)
    return Breakdown(
        step_seconds=total,
        median_seconds=statistics.median(s.seconds for s in plain),
        spread=_spread(plain, total),
        phases=phases,
        unaccounted=total - known if total - known > ROUNDING else 0.0,
        samples_per_second=samples / total if samples else None,
        num_steps=len(run.steps),
        device_seconds=device,
        device_wait=wait,
    )


def _within_epochs(steps: Sequence[Step]) -> list[Step]:
    """The steps that no epoch begins with; all of them where epochs are that short that few are left."""
    within = [s for s in steps if not s.phases.get("epoch_start")]
    return within if 2 * len(within) >= len(steps) else list(steps)


def _regular(step: Step) -> float:
    return step.seconds - sum(step.phases.get(p, 0.0) for p in RARE)


def _phases(within: Sequence[Step], regular: float, run: Run) -> dict[str, float | None]:
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
    phases: dict[str, float | None] = {}
    for phase in PHASES:
        if phase not in RARE:
            times = [s.phases[phase] for s in marked if phase in s.phases]
            spent = sum(times) / len(marked) - (excess if phase == "script" else 0.0)
            phases[phase] = scale * spent if times else None
        else:
            phases[phase] = None
    return phases


def _rare_seconds(run: Run, phase: str, regular: float) -> float | None:
    """Seconds a step of what happens once in a while; None where it never happened."""
    times = [_rare(s, phase, regular) for s in run.steps if s.phases.get(phase, 0.0) > 0.0]
    if not times:
        return None
    mean = max(0.0, statistics.fmean(times))
    every = run.facts.steps_per_epoch
    seen = len(run.steps) / len(times)
    # Fewer steps than an epoch were measured, yet its end was among them: its length says how seldom that is.
    if phase == "epoch_start" and every is not None and len(times) < 3:
        return mean / every
    if every is not None and len(run.steps) < every and len(times) == 1 and seen < every:
        return mean / every
    return mean / seen


def _rare(step: Step, phase: str, regular: float) -> float:
    longer = _regular(step) - regular if phase == "epoch_start" else 0.0
    return step.phases[phase] + longer


def _samples_per_step(steps: Sequence[Step]) -> float | None:
    known = [s.num_samples for s in steps if s.num_samples is not None]
    return statistics.fmean(known) if known else None


def _spread(plain: Sequence[Step], total: float) -> Interval | None:
    """95 % interval of the mean, by means of up to twelve stretches of steps."""
    size = max(1, len(plain) // 12)
    means = [
        statistics.fmean(_regular(s) for s in plain[i : i + size]) for i in range(0, len(plain) - size + 1, size)
    ]
    if len(means) < 2:
        return None
    estimate = mean_interval(means)
    shift = total - estimate.value
    return Interval(value=total, low=max(0.0, estimate.low + shift), high=estimate.high + shift)


def _device(marked: Sequence[Step]) -> tuple[float | None, float | None]:
    """Seconds a step that the device waited for data, and was busy; None on a CPU."""
    seen = [s for s in marked if s.device]
    if not seen:
        return None, None
    busy = statistics.fmean(sum(s.device.values()) for s in seen)
    wait = statistics.fmean(
        max(0.0, min(s.phases.get("data_wait", 0.0), s.seconds - sum(s.device.values()))) for s in seen
    )
    return wait, busy
