"""What makes samples into batches: everything that a worker is started with. Plain data: it crosses to another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hasten.data.memo.folders import FolderSamples
from hasten.data.memo.memo import Memo


@dataclass
class WorkerConfig:
    """What every worker of a loader is started with."""

    dataset: Any
    folders: FolderSamples | None
    """Makes the samples of image folders."""
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
    memo: Memo | None


def note_of(notes: memoryview, number: int) -> memoryview:
    """Where a worker notes which sample it is at: (batch, row), the batch -1 when it has none."""
    return notes.cast("q")[2 * number : 2 * number + 2]
