"""How launches of a comparison are made: for how long, from which seed, and warm where something is kept.

In: a diagnosed baseline and settings. Out: what a launch's processes are told. Refuses to launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.fixes.catalog import installers_of
from hasten.fixes.fix import Situation
from hasten.measurement.interventions import START
from hasten.records import Settings

SEED = 20_000
WARM_LIMIT = 6.0  # seconds that the first of the short epochs should take without the plan
SHORT_EPOCH = 0.5  # seconds that a short epoch should take at least, once it is warm


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How launches are made."""

    seconds: float = 2.0  # of steps that count
    epoch_batches: int | None = None  # epochs cut to so many batches, measured from the second on
    warm_seconds: float = 20.0  # the first of them may take
    most_pairs: int = 16


def manner_of(first: Situation, settings: Settings) -> Manner:
    """How long launches measure: so that what comes rarely, and weighs, comes in them; warm where something is kept."""
    case, facts = first.case, first.case.facts
    seconds = Manner.seconds
    periods = {"epoch_start": facts.steps_per_epoch, "validation": facts.steps_per_validation}
    for phase, period in periods.items():
        if period and case.share(phase) >= 0.05:
            seconds = max(seconds, min(20.0, 2.2 * period * case.step))
    seconds = max(seconds, min(8.0, 5 * case.step))
    if not {"cache", "disk_cache"} & {*settings}:
        return Manner(seconds=seconds)
    warm_step = max(1e-4, case.step - first.headroom)
    most = max(4.0, WARM_LIMIT / max(case.step, 1e-4))
    wanted = int(min(most, max(8.0, SHORT_EPOCH / warm_step)) * max(1.0, case.batches))
    whole = facts.steps_per_epoch
    short = wanted if whole is None else min(wanted, int(whole * max(1.0, case.batches)))
    return Manner(seconds=seconds, epoch_batches=max(2, short), warm_seconds=3 * WARM_LIMIT)


def spec_of(settings: Settings, manner: Manner, *, quality: int = 0, shift: int = 0) -> dict[str, object]:
    """What a launch's processes are told."""
    spec: dict[str, object] = {
        "mode": "plain",
        "seconds": manner.seconds,
        "seed": SEED,
        "shift": shift,
        "quality": quality,
        "plugins": [START],
        "fixes": installers_of(settings),
    }
    if manner.epoch_batches is not None:
        spec.update(epoch_batches=manner.epoch_batches, warm_seconds=manner.warm_seconds)
    return spec
