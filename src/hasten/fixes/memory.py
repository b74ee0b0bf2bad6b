"""Fixes for when memory is short."""

from __future__ import annotations

from hasten.fixes.fix import Fix, from_finding

INSIDE = "hasten.fixes.inside.memory"
THRASH = "no memory is given back to the device and asked for again"
LAST_RESORT = "it saves memory and costs time; `hasten run` takes to it by itself when memory runs out"

FIXES = (
    Fix(
        name="keep_device_memory",
        title="memory that is free on the GPU stays with PyTorch: torch.cuda.empty_cache() does nothing",
        guarantee="identical",
        answers=("allocator_thrash",),
        propose=from_finding("allocator_thrash", otherwise=THRASH),
        installer=f"{INSIDE}:keep_device_memory",
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
    ),
)
