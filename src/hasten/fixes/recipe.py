"""Fixes that change how the model is trained. Tried only when asked for, and proven by a metric."""

from __future__ import annotations

from hasten.fixes.fix import Fix, Proposal, Situation

INSIDE = "hasten.fixes.inside.recipe"
MOST_GROWTH = 8


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
        title="Adam's weight decay decoupled from its gradient",
        guarantee="recipe",
        answers=(),
        propose=lambda _: "it makes no step faster; set it yourself and compare by --metric",
        installer=f"{INSIDE}:adamw",
    ),
    Fix(
        name="onecycle",
        title="the learning rate rises and falls once within so many steps",
        guarantee="recipe",
        answers=(),
        propose=lambda _: "it makes no step faster; set it yourself and compare by --metric",
        kind="number",
        least=10,
        installer=f"{INSIDE}:onecycle",
        excludes=("cyclic",),
    ),
    Fix(
        name="cyclic",
        title="the learning rate swings up and down, so many steps each way",
        guarantee="recipe",
        answers=(),
        propose=lambda _: "it makes no step faster; set it yourself and compare by --metric",
        kind="number",
        installer=f"{INSIDE}:cyclic",
        excludes=("onecycle",),
    ),
)
