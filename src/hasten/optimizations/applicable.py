"""What kinds of optimizations ask of a script: whether its training waits for batches, whether its precision may change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.diagnosis.situation import Situation
    from hasten.records import LoaderFacts

QUEUEING = ("too_few_workers", "shallow_prefetch", "worker_startup")  # kinds of findings
SLOW_WORK = ("slow_read", "slow_decode", "slow_transform", "slow_collate", "waiting_samples", "python_bound_data")
HANDING_OVER = ("slow_transport",)
NO_LOADER = "the script uses no DataLoader"
NOT_WAITING = "training does not wait for batches"
WAITS = 0.08  # share of the step that input optimizations must be able to save


def training_loader(situation: Situation) -> LoaderFacts | str:
    """The training loader, or why nothing is to be gained there."""
    train = situation.case.train
    if train is None:
        return NO_LOADER
    waits = situation.headroom >= WAITS * situation.case.step
    return train if waits or situation.finding(*SLOW_WORK, *HANDING_OVER, *QUEUEING) is not None else NOT_WAITING


def why_keep_precision(situation: Situation) -> str | None:
    """Why the script's precision is not to be changed; None: it may be."""
    facts = situation.case.facts
    if facts.autocast:
        return "the script uses autocast itself"
    if not any("float32" in model.dtypes for model in facts.models):
        return "no model in float32 was seen"
    if any("float64" in model.dtypes for model in facts.models):
        return "the script computes in float64, perhaps because it must"
    return None
