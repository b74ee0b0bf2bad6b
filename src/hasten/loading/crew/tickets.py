"""What a worker is asked to do, and what it answers.

Plain data: both cross a pipe.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from typing import Any, Literal

from hasten.loading.memory.arena import Place
from hasten.loading.memory.nest import Nest
from hasten.loading.memory.packing import pack, unpack, write_buffers


@dataclass
class Ticket:
    """Some samples of one batch, or the whole of it."""

    batch: int
    """Number of the batch since the crew began: never given twice."""
    start: int
    """Row of the first of these samples."""
    kind: Literal["first", "rows", "whole"]
    """The first sample of all, which shows what the others are like; some rows; or a whole batch, collated."""
    indices: list[Any]
    """What the sampler gave; for a dataset without batching, the one key."""
    seed: int
    """Of the epoch."""
    occurrences: list[int] | None = None
    """How often each of them came before in this epoch; None: never."""
    length: int = 0
    """Rows of the batch."""
    slot: Place | None = None
    """Where the rows, or the arrays of a whole batch, go; None: into the answer."""
    nest: Place | Nest | None = None
    """For rows: what samples are like, or where that is written down."""


@dataclass
class Replaced:
    """A sample that could not be made, and whose place another took."""

    index: Any
    by: Any
    error: str


@dataclass
class Answer:
    """What came of a ticket."""

    batch: int
    start: int
    count: int
    objects: list[list[object]] = field(default_factory=list)
    """Of each sample: what has no row."""
    strays: list[tuple[int, Any]] = field(default_factory=list)
    """Row and sample, where the sample does not fit its row."""
    value: Any = None
    """A whole batch; or its header, where its arrays lie in the slot or in `memory`."""
    memory: bytearray | None = None
    in_slot: bool = False
    wanted: int = 0
    """Bytes of the arrays of a whole batch."""
    nest: Nest | None = None
    """Read from the first sample, if it has rows."""
    error: BaseException | None = None
    row: int = 0
    """Of the sample that failed."""
    replaced: list[Replaced] = field(default_factory=list)
    prepare_seconds: float = 0.0
    complete_seconds: float = 0.0
    collate_seconds: float = 0.0
    cpu_seconds: float = 0.0


_PACKED = struct.Struct("<cQ")
_MARK = b"P"  # no pickle begins with it


def to_message(answer: Answer) -> bytes:
    """For a pipe. Samples that have no rows are packed: pickling a tensor is slow, and not every dtype survives it."""
    if not answer.strays:
        return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    header, buffers, size = pack(answer)
    memory = bytearray(size)
    write_buffers(buffers, memoryview(memory))
    return _PACKED.pack(_MARK, len(header)) + header + memory


def from_message(message: bytes) -> Answer:
    """The answer again."""
    if message[:1] != _MARK:
        return pickle.loads(message)
    start = _PACKED.size
    end = start + _PACKED.unpack_from(message)[1]
    return unpack(message[start:end], memoryview(bytearray(message[end:]))).value
