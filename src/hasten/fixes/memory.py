"""Fixes for when memory is short."""

from __future__ import annotations

from hasten.fixes.fix import Fix

INSIDE = "hasten.fixes.inside.memory"
LAST_RESORT = "it saves memory and costs time; `hasten run` takes to it by itself when memory runs out"

FIXES = (
    Fix(
        name="chunked_forward",
        title="the model's training forward in so many pieces, each made once more for its backward",
        guarantee="rounding",
        answers=("memory_full",),
        propose=lambda _: LAST_RESORT,
        kind="number",
        least=2,
        installer=f"{INSIDE}:chunked_forward",
    ),
    Fix(
        name="micro_batch",
        title="at most so many samples of a batch are held for backward at once",
        guarantee="rounding",
        answers=("memory_full",),
        propose=lambda _: LAST_RESORT,
        kind="number",
        words=("auto",),
        installer=f"{INSIDE}:micro_batch",
        excludes=("chunked_forward",),
    ),
)
