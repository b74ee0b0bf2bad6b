"""A packed value on its way to and from a tier, with what is needed to trust it.

In: a key, a packed value, what it took to prepare. Out: the bytes that a tier writes, and from bytes that it read the
value again, or None. Refuses to know where they lie.

    magic | checksum | bytes of header | bytes of buffers | seconds | key | header | buffers, aligned
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from hasten.loading.memory.packing import Packed, Unpacked, aligned, padded, unpack

KEY_SIZE = 16
_MAGIC = b"hasten\x00\x01"
_CHECKSUM = struct.Struct("<I")
_REST = struct.Struct(f"<IQd{KEY_SIZE}s")
_CHECKED_FROM = len(_MAGIC) + _CHECKSUM.size
HEAD_SIZE = _CHECKED_FROM + _REST.size


@dataclass(frozen=True)
class Parcel:
    """Bytes for a tier: `pieces`, one after the other, are `size` bytes."""

    pieces: list[bytes | memoryview]
    size: int


@dataclass(frozen=True)
class Opened:
    """What a parcel holds."""

    packed: Packed
    seconds: float
    """What the value took to prepare."""

    is_trusted: bool = True
    """Whether it lay in memory of this run's own."""

    def unpacked(self) -> Unpacked:
        """The value; it views the parcel's memory."""
        return unpack(self.packed.header, self.packed.buffers[0], is_trusted=self.is_trusted)


def size_of(packed: Packed) -> int:
    """Bytes of the parcel."""
    return aligned(HEAD_SIZE + len(packed.header)) + packed.size


def seal(key: bytes, packed: Packed, *, seconds: float, checked: bool) -> Parcel:
    """The parcel; `checked`: with a checksum of all its bytes, else the memory that it lies in is trusted."""
    rest = _REST.pack(len(packed.header), packed.size, seconds, key)
    padding = bytes(aligned(HEAD_SIZE + len(packed.header)) - HEAD_SIZE - len(packed.header))
    pieces = [rest, packed.header, padding, *padded(packed.buffers)]
    checksum = _checksum(pieces) if checked else 0
    return Parcel([_MAGIC + _CHECKSUM.pack(checksum), *pieces], size_of(packed))


def size_at(memory: memoryview, key: bytes) -> int | None:
    """Bytes of the parcel that begins where the memory begins; None where that is not the key's parcel."""
    if len(memory) < HEAD_SIZE or bytes(memory[: len(_MAGIC)]) != _MAGIC:
        return None
    header, buffers, _, found = _REST.unpack_from(memory, _CHECKED_FROM)
    return aligned(HEAD_SIZE + header) + buffers if found == key else None


def open_parcel(memory: memoryview, key: bytes, *, checked: bool) -> Opened | None:
    """What the parcel holds, as views; None where the memory is not exactly the key's parcel, or is damaged."""
    if size_at(memory, key) != len(memory):
        return None
    if checked and _checksum([memory[_CHECKED_FROM:]]) != _CHECKSUM.unpack_from(memory, len(_MAGIC))[0]:
        return None
    header, size, seconds, _ = _REST.unpack_from(memory, _CHECKED_FROM)
    start = aligned(HEAD_SIZE + header)
    packed = Packed(memory[HEAD_SIZE : HEAD_SIZE + header], [memory[start:]], size)
    return Opened(packed, seconds, is_trusted=not checked)


def _checksum(pieces: Sequence[bytes | memoryview]) -> int:
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum
