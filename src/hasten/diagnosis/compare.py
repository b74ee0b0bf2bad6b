"""Has a script become slower? Runs of it from before, against runs from now.

In: Runs. Out: a Comparison. Refuses to call slower what the runs' own spread may have made.

With several runs a side the mean step of each is one value: what differs from run to run is in the interval. With one run
a side its stretches of steps are the values, and what differs from run to run is not: the comparison says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hasten.records import Comparison, Interval, Run, Verdict
from hasten.stats import ratio_interval

STRETCHES = 8  # of a single run
FEWEST = 2 * STRETCHES  # steps of a single run that are not an epoch's first
ONE_RUN = "one run a side: how far runs of one script lie apart is not in the interval; name several, by commas"


def compare(old: Sequence[Run], new: Sequence[Run], *, max_slowdown: float) -> Comparison:
    """New step times over old ones. "slower" where even the interval's lower end is beyond what is allowed."""
    single = min(len(old), len(new)) < 2
    sides = [_stretches(runs[0]) if single else [_step_seconds(run) for run in runs] for runs in (old, new)]
    before, now = sides
    ratio = Interval(*ratio_interval(now, before))
    allowed = 1 + max_slowdown
    verdict: Verdict = "inconclusive"
    if ratio.low > allowed:
        verdict = "slower"
    elif ratio.high <= allowed:
        verdict = "faster" if ratio.high < 1.0 else "no difference"
    notes = [ONE_RUN] if single else []
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
    """Steps of the time of record, epochs' first ones left out; all steps where there are too few of those."""
    plain = [step.seconds for step in run.steps if not step.marked and not step.starts_epoch]
    return plain if len(plain) >= FEWEST else [step.seconds for step in run.steps]


def _step_seconds(run: Run) -> float:
    return statistics.fmean(_regular(run))


def _stretches(run: Run) -> list[float]:
    seconds = _regular(run)
    size = max(1, len(seconds) // STRETCHES)
    return [statistics.fmean(seconds[n : n + size]) for n in range(0, len(seconds) - size + 1, size)]


def _differences(old: Run, new: Run) -> list[str]:
    """What else has changed: a machine or a torch of another kind explains a difference by itself."""
    pairs = {
        "command": (" ".join(old.command), " ".join(new.command)),
        "CPU": (old.machine.cpu, new.machine.cpu),
        "cores": (f"{old.machine.num_cores:g}", f"{new.machine.num_cores:g}"),
        "device": (_devices(old), _devices(new)),
        "torch": (old.machine.torch, new.machine.torch),
    }
    return [f"another {what}: {before}, now {now}" for what, (before, now) in pairs.items() if before != now]


def _devices(run: Run) -> str:
    return ", ".join(device.name for device in run.machine.devices) or "none"
