"""What a worker is started with, what it is asked to do, and what it answers.

Plain data: it crosses to other processes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from hasten.data.layout.arena import Place
from hasten.data.layout.packing import pack, unpack, write_buffers
from hasten.data.layout.tree import Layout
from hasten.data.memo.folders import FolderSamples, Prepared
from hasten.data.memo.memo import Memo


@dataclass
class Task:
    """Some samples of one batch, or the whole of it."""

    batch: int
    """Number of the batch since the pool began: never given twice."""
    start: int
    """Row of the first of these samples."""
    kind: Literal["first", "rows", "whole", "cuts"]
    """The first sample of all, which shows what the others are like; some rows; a whole batch, collated; or what to cut
    from images that the training process holds."""
    indices: list[Any]
    """What the sampler gave; for a dataset without batching, the one key."""
    seed: int
    """Of the epoch."""
    occurrences: list[int] | None = None
    """How often each of them came before in this epoch; None: never."""
    length: int = 0
    """Leaf of the batch."""
    slot: Place | None = None
    """Where the rows, or the arrays of a whole batch, go; None: into the result."""
    layout: Place | Layout | None = None
    """For rows: what samples are like, or where that is written down."""
    held: list[Prepared] | None = None
    """For cuts: of each sample, its image before the random part."""


@dataclass
class Replaced:
    """A sample that could not be made, and whose place another took."""

    index: Any
    by: Any
    error: str


@dataclass
class Result:
    """What came of a task."""

    batch: int
    start: int
    count: int
    objects: list[list[object]] = field(default_factory=list)
    """Of each sample: what has no row."""
    strays: list[tuple[int, Any]] = field(default_factory=list)
    """Row and sample, where the sample does not fit its row; for cuts, row and CutSample, or None."""
    value: Any = None
    """A whole batch; or its header, where its arrays lie in the slot or in `memory`."""
    memory: bytearray | None = None
    in_slot: bool = False
    wanted: int = 0
    """Bytes of the arrays of a whole batch."""
    layout: Layout | None = None
    """Read from the first sample, if it has rows."""
    error: BaseException | None = None
    row: int = 0
    """Of the sample that failed."""
    replaced: list[Replaced] = field(default_factory=list)
    sample_seconds: float = 0.0
    collate_seconds: float = 0.0
    cpu_seconds: float = 0.0


_PACKED = struct.Struct("<cQ")
_MARK = b"P"  # no pickle begins with it


def to_message(result: Result) -> bytes:
    """For a pipe. Samples that have no rows are packed: pickling a tensor is slow, and not every dtype survives it."""
    if not result.strays:
        return pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    header, buffers, size = pack(result)
    memory = bytearray(size)
    write_buffers(buffers, memoryview(memory))
    return _PACKED.pack(_MARK, len(header)) + header + memory


def from_message(message: bytes) -> Result:
    """The result again."""
    if message[:1] != _MARK:
        return pickle.loads(message)
    start = _PACKED.size
    end = start + _PACKED.unpack_from(message)[1]
    return unpack(message[start:end], memoryview(bytearray(message[end:])))


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
