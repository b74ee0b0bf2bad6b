"""Fixes that change how the model is trained. Tried only when asked for, and proven by a metric.

`batch_size` makes samples cheaper and is tried like any fix. An optimizer and a schedule make no step faster: they are
tried in whole runs, by how soon the script's metric reaches its target.
"""

from __future__ import annotations

from hasten.fixes.fix import Fix, Proposal, Situation
from hasten.records import Settings

INSIDE = "hasten.fixes.inside.recipe"
MOST_GROWTH = 8
FEWEST_STEPS = 10  # of a schedule
RATES = (0.001, 0.003, 0.01)  # of AdamW; its authors' is the first, and a schedule that ends low bears more
IN_WHOLE_RUNS = ("adamw", "onecycle", "cyclic")  # tried so, for they make no step faster
NO_FASTER_STEP = "it makes no step faster; with --target it is tried in whole runs"


def _batch_size(situation: Situation) -> list[Proposal] | str:
    train = situation.case.train
    if train is None or not train.batch_size:
        return "no training loader with a batch size was seen"
    finding = situation.finding("small_batch")
    if finding is None:
        return "a larger batch would not make a sample cheaper"
    size = train.batch_size
    return [
        Proposal(value=factor * size, saves=finding.recoverable * (1 - 1 / factor), because=finding.title)
        for factor in (4, MOST_GROWTH)
    ]


def combinations(num_steps: float | None) -> list[Settings]:
    """Recipes worth a whole run each, from the likeliest on; a schedule needs the number of steps that training takes."""
    found: list[Settings] = []
    if num_steps is not None and num_steps >= FEWEST_STEPS:
        total = round(num_steps)
        for rate in RATES[1:]:
            found.append({"adamw": rate, "onecycle": total})
        found.append({"onecycle": total})
        found.append({"adamw": RATES[1], "cyclic": max(2, total // 8)})
    found.append({"adamw": RATES[0]})
    return found


FIXES = (
    Fix(
        name="batch_size",
        title="training batches of so many samples, the learning rate scaled with them",
        guarantee="recipe",
        answers=("small_batch",),
        propose=_batch_size,
        kind="number",
        installer=f"{INSIDE}:batch_size",
    ),
    Fix(
        name="adamw",
        title="AdamW at this learning rate in place of SGD or Adam",
        guarantee="recipe",
        answers=(),
        propose=lambda _: NO_FASTER_STEP,
        kind="rate",
        installer=f"{INSIDE}:adamw",
    ),
    Fix(
        name="onecycle",
        title="the learning rate rises and falls once within so many steps",
        guarantee="recipe",
        answers=(),
        propose=lambda _: NO_FASTER_STEP,
        kind="number",
        least=FEWEST_STEPS,
        installer=f"{INSIDE}:onecycle",
        excludes=("cyclic",),
    ),
    Fix(
        name="cyclic",
        title="the learning rate swings up and down, so many steps each way",
        guarantee="recipe",
        answers=(),
        propose=lambda _: NO_FASTER_STEP,
        kind="number",
        installer=f"{INSIDE}:cyclic",
        excludes=("onecycle",),
    ),
)
