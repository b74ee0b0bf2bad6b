"""What a worker is sent out with, and where it notes which sample it is at.

Plain data: it crosses to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hasten.loading.cache.cache import Cache
from hasten.loading.recipe import Recipe


@dataclass
class Kit:
    """What makes samples into batches: everything that a worker is sent out with."""

    dataset: Any
    recipe: Recipe
    collate: Callable[[Any], Any]
    fetches_batches: bool
    """The dataset makes all samples of a batch at once (`__getitems__`)."""
    batched: bool
    """False: the sampler's keys go to the dataset one at a time (batch_size=None)."""
    late_floats: bool
    on_error: Literal["raise", "replace"]
    base_seed: int
    num_workers: int
    most_workers: int
    """As many may be working at some time."""
    init: Callable[[int], None] | None
    cache: Cache | None


def note_of(notes: memoryview, number: int) -> memoryview:
    """Where a worker notes which sample it is at: (batch, row), the batch -1 when it has none."""
    return notes.cast("q")[2 * number : 2 * number + 2]
