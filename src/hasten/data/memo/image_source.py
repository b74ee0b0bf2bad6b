"""Where an image of Pillow's comes from: a file on disk or in memory, and whether it is still the same."""

from __future__ import annotations

import io
import os
from typing import Any, NamedTuple

from hasten.data.memo.keys import identity_of_bytes, identity_of_status

FORMATS = frozenset(("JPEG", "MPO", "PNG", "BMP", "PPM", "JPEG2000"))
"""Whose `load` changes little else of an image than its pixels, or is seen to change it."""

Stamp = tuple[int, int, int, int]


class HeldFile:
    """A file that stays readable when its name is taken away. It has no position, so processes can share it."""

    def __init__(self, fp: Any) -> None:
        self._descriptor = os.dup(fp.fileno())

    def read(self, stamp: Stamp) -> bytes:
        """The whole file. Raises OSError where it was written to."""
        data, at = bytearray(stamp[2]), 0
        before = stamp_of(os.fstat(self._descriptor))
        while at < len(data) and (num_read := os.preadv(self._descriptor, [memoryview(data)[at:]], at)):
            at += num_read
        if not before == stamp_of(os.fstat(self._descriptor)) == stamp or at < len(data):
            raise OSError("an image file was written to while an image of it was in use")
        return bytes(data)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class Source(NamedTuple):
    """Where an image file comes from."""

    identity: bytes
    stamp: Stamp
    data: bytes | None
    """The file, where it lies in memory."""
    path: Any
    num_bytes: int
    file: HeldFile | None = None

    def is_read_by(self, fp: Any) -> bool:
        """Whether an open file is this source, unchanged."""
        if fp is None or fp.closed:
            return False
        if self.data is not None:
            return type(fp) is io.BytesIO and fp.getvalue() == self.data
        return identity_of_status(os.fstat(fp.fileno())) == self.identity

    def is_unchanged(self) -> bool:
        """Whether the file of that name is still this source."""
        try:
            return self.data is not None or identity_of_status(os.stat(self.path)) == self.identity
        except OSError:
            return False

    def held(self, fp: Any) -> Source:
        """The same, independent of `fp`, which is about to be closed."""
        if self.data is not None or self.file is not None or not hasattr(os, "preadv"):
            return self
        try:
            return self._replace(file=HeldFile(fp))
        except OSError:  # too many open files
            return self

    def open(self) -> io.BytesIO:
        """The file again. Raises OSError where it was written to."""
        if self.data is not None:
            return io.BytesIO(self.data)
        if self.file is not None:
            return io.BytesIO(self.file.read(self.stamp))
        with open(self.path, "rb") as file:
            data = file.read()
            if stamp_of(os.fstat(file.fileno())) != self.stamp:
                raise OSError(f"{self.path} was changed while an image of it was in use")
        return io.BytesIO(data)


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells whether a file was written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def source_of(image: Any, fp: Any) -> Source | None:
    """Where an image that was opened comes from; None where that cannot be known, or its format is another."""
    if image.format not in FORMATS or not type(image).__module__.startswith("PIL."):
        return None
    if type(fp) is io.BytesIO:
        data = fp.getvalue()
        return Source(identity_of_bytes(data), (0, 0, 0, 0), data, None, len(data))
    if not _is_plain_file(image.fp):
        return None
    if isinstance(fp, io.BufferedReader):
        path: Any = fp.name
    elif isinstance(fp, (str, bytes, os.PathLike)):
        path = os.fspath(fp)
    else:
        return None
    if not isinstance(path, (str, bytes)):
        return None
    try:
        status = os.fstat(image.fp.fileno())
        path = os.path.abspath(path)
    except (OSError, AttributeError, ValueError):
        return None
    identity = identity_of_status(status)
    if identity is None:
        return None
    return Source(identity, stamp_of(status), None, path, status.st_size)


def _is_plain_file(fp: Any) -> bool:
    """Whether reading an open file gives the bytes of the file on disk: no window of it, nothing unpacked on the way."""
    is_reader = type(fp) is io.BufferedReader or type(fp).__module__.startswith("hasten.")
    return is_reader and type(getattr(fp, "raw", None)) is io.FileIO
