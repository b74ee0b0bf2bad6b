"""The messages between a loader and its workers: configuration, tasks and results.

Plain data, because it is sent to other processes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch._utils import ExceptionWrapper

from hasten.data.layout.arena import Place
from hasten.data.layout.packing import pack, unpack, write_buffers
from hasten.data.layout.slots import Slot
from hasten.data.layout.tree import Layout
from hasten.data.memo.folders import FolderSamples, Prepared
from hasten.data.memo.memo import Memo


@dataclass
class Task:
    """Some samples of one batch, or the whole batch."""

    batch: int
    """Number of the batch since the pool started; never reused."""
    start: int
    """Row of the first of these samples."""
    kind: Literal["first", "rows", "whole", "cuts"]
    """"first": the first sample of all, which shows the structure of the others; "rows": some rows; "whole": a whole batch,
    collated; "cuts": which regions to take of images that are on the device."""
    indices: list[Any]
    """The sampler's indices; for a dataset without batching, a single key."""
    seed: int
    """The epoch's seed."""
    occurrences: list[int] | None = None
    """How often each index occurred before in this epoch; None: never."""
    length: int = 0
    """Number of samples in the batch."""
    slot: Place | None = None
    """The place for the rows, or for the arrays of a whole batch; None: they go into the result."""
    layout: Place | Layout | None = None
    """For "rows": the layout of the samples, or where it is stored."""
    held: list[Prepared] | None = None
    """For "cuts": each sample's image before the random part."""
    coming: list[Any] = field(default_factory=list)
    """Indices of samples to come, whose remote objects this task's worker fetches ahead."""
    holds: Slot | None = None
    """The slot of the place: it is not reused while a thread still works on the task. None in another process."""


@dataclass
class Replaced:
    """A sample that could not be built, and its substitute."""

    index: Any
    by: Any
    error: str


@dataclass
class Result:
    """The result of a task."""

    batch: int
    start: int
    count: int
    objects: list[list[object]] = field(default_factory=list)
    """For each sample: its leaves that have no row."""
    unplaced: list[tuple[int, Any]] = field(default_factory=list)
    """(row, sample) for samples that do not fit their row; for "cuts", (row, CutSample or None)."""
    value: Any = None
    """A whole batch; or its header, if its arrays are in the slot or in `memory`."""
    memory: bytearray | None = None
    in_slot: bool = False
    num_bytes: int = 0
    """Bytes of a whole batch's arrays."""
    layout: Layout | None = None
    """Read from the first sample, if it can be stored in rows."""
    error: BaseException | ExceptionWrapper | None = None
    row: int = 0
    """The row of the failed sample."""
    error_text: str = ""
    """The repr of the exception that it raised; `error` is wrapped for the way between processes."""
    replaced: list[Replaced] = field(default_factory=list)
    sample_seconds: float = 0.0
    collate_seconds: float = 0.0
    cpu_seconds: float = 0.0


_PACKED = struct.Struct("<cQ")
_MARK = b"P"  # no pickle starts with it


def to_message(result: Result) -> bytes:
    """Serialize for a pipe. Samples without rows are packed: pickling tensors is slow and does not support every dtype."""
    if not result.unplaced:
        return pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    header, buffers, size = pack(result)
    memory = bytearray(size)
    write_buffers(buffers, memoryview(memory))
    return _PACKED.pack(_MARK, len(header)) + header + memory


def from_message(message: bytes) -> Result:
    """Deserialize the result."""
    if message[:1] != _MARK:
        return pickle.loads(message)
    start = _PACKED.size
    end = start + _PACKED.unpack_from(message)[1]
    return unpack(message[start:end], memoryview(bytearray(message[end:])))


@dataclass
class WorkerConfig:
    """The configuration with which every worker of a loader is started."""

    dataset: Any
    folders: FolderSamples | None
    """Builds the samples of image folders."""
    collate: Callable[[Any], Any]
    fetches_batches: bool
    """The dataset builds all samples of a batch at once (`__getitems__`)."""
    batched: bool
    """False: the sampler's keys are passed to the dataset one at a time (batch_size=None)."""
    late_floats: bool
    on_error: Literal["raise", "replace"]
    base_seed: int
    num_workers: int
    max_workers: int
    """The largest number of workers at any time."""
    init: Callable[[int], None] | None
    memo: Memo | None
    reads_ahead: bool
    """Fetch the remote objects of coming samples."""


def note_of(notes: memoryview, number: int) -> memoryview:
    """Return where a worker notes the sample that it is building: (batch, row), with batch -1 if there is none."""
    return notes.cast("q")[2 * number : 2 * number + 2]
