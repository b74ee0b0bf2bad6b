"""Compare runs of a script from before with runs from now: has it become slower?

The mean step time of each run is one value, so the interval includes the variation from run to run. Of a single run on a
side the values are means of its segments, and its run-to-run variation is unknown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hasten.records import Comparison, Interval, Run, Verdict
from hasten.stats import ratio_interval

SEGMENTS = 8  # of a single run
FEWEST = 2 * SEGMENTS  # fewest regular steps of a single run that are used without the others
ONE_RUN = "only one run on {side} side, so run-to-run variation is unknown; pass several, separated by commas"


def compare(old: Sequence[Run], new: Sequence[Run], *, max_slowdown: float) -> Comparison:
    """Compare new with old step times. The verdict is "slower" if the whole interval is beyond `max_slowdown`."""
    before, now = (
        [_step_seconds(run) for run in runs] if len(runs) > 1 else _segments(runs[0]) for runs in (old, new)
    )
    ratio = Interval(*ratio_interval(now, before))
    allowed = 1 + max_slowdown
    verdict: Verdict = "inconclusive"
    if ratio.low > allowed:
        verdict = "slower"
    elif ratio.high <= allowed:
        verdict = "faster" if ratio.high < 1.0 else "no difference"
    single = [name for name, runs in (("old", old), ("new", new)) if len(runs) < 2]
    notes = [ONE_RUN.format(side="each" if len(single) > 1 else f"the {single[0]}")] if single else []
    notes += _differences(old[0], new[0])
    return Comparison(
        ratio=ratio,
        verdict=verdict,
        max_slowdown=max_slowdown,
        old_seconds=tuple(before),
        new_seconds=tuple(now),
        notes=tuple(notes),
    )


def _regular(run: Run) -> list[float]:
    """Seconds of the uninstrumented steps without epochs' first ones; of all steps if those are too few."""
    plain = [step.seconds for step in run.steps if not step.marked and not step.starts_epoch]
    return plain if len(plain) >= FEWEST else [step.seconds for step in run.steps]


def _step_seconds(run: Run) -> float:
    return statistics.fmean(_regular(run))


def _segments(run: Run) -> list[float]:
    seconds = _regular(run)
    size = max(1, len(seconds) // SEGMENTS)
    return [statistics.fmean(seconds[n : n + size]) for n in range(0, len(seconds) - size + 1, size)]


def _differences(old: Run, new: Run) -> list[str]:
    """Notes on what else has changed: another machine or PyTorch may explain a difference."""
    pairs = {
        "command": (" ".join(old.command), " ".join(new.command)),
        "CPU": (old.machine.cpu, new.machine.cpu),
        "cores": (f"{old.machine.num_cores:g}", f"{new.machine.num_cores:g}"),
        "device": (_devices(old), _devices(new)),
        "torch": (old.machine.torch, new.machine.torch),
    }
    return [f"different {what}: {before} before, now {now}" for what, (before, now) in pairs.items() if before != now]


def _devices(run: Run) -> str:
    return ", ".join(device.name for device in run.machine.devices) or "none"
