"""What the optimizations that compute in fewer bits ask of a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.diagnosis.situation import Situation


def why_not(situation: Situation) -> str | None:
    """Why the script's precision is not to be changed; None: it may be."""
    facts = situation.case.facts
    if facts.autocast:
        return "the script uses autocast itself"
    if not any("float32" in model.dtypes for model in facts.models):
        return "no model in float32 was seen"
    if any("float64" in model.dtypes for model in facts.models):
        return "the script computes in float64, perhaps because it must"
    return None
