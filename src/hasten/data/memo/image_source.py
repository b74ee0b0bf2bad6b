"""The source of a Pillow image: a file on disk or in memory, and whether it is unchanged."""

from __future__ import annotations

import io
import os
from typing import Any, NamedTuple

from hasten.data.memo.keys import identity_of_bytes, identity_of_open, identity_of_path, identity_of_status
from hasten.mounts import network_mount

FORMATS = frozenset(("JPEG", "MPO", "PNG", "BMP", "PPM", "JPEG2000"))
"""Formats whose `load` changes little of an image besides its pixels, or changes it detectably."""

Stamp = tuple[int, int, int, int]


class HeldFile:
    """A file that stays readable when it is unlinked. It is read without a position, so processes can share it."""

    def __init__(self, fp: Any) -> None:
        self._descriptor = os.dup(fp.fileno())

    def read(self, stamp: Stamp) -> bytes:
        """Return the whole file. Raises OSError if it was modified."""
        data, at = bytearray(stamp[2]), 0
        before = stamp_of(os.fstat(self._descriptor))
        while at < len(data) and (num_read := os.preadv(self._descriptor, [memoryview(data)[at:]], at)):
            at += num_read
        if not before == stamp_of(os.fstat(self._descriptor)) == stamp or at < len(data):
            raise OSError("an image file was modified while an image from it was in use")
        return bytes(data)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class Source(NamedTuple):
    """The source of an image file."""

    identity: bytes
    stamp: Stamp
    data: bytes | None
    """The file's content, if it is in memory."""
    path: Any
    num_bytes: int
    file: HeldFile | None = None

    def is_read_by(self, fp: Any) -> bool:
        """Whether an open file is this source, unchanged."""
        if fp is None or fp.closed:
            return False
        if self.data is not None:
            return type(fp) is io.BytesIO and fp.getvalue() == self.data
        return identity_of_open(fp.fileno()) == self.identity

    def is_unchanged(self) -> bool:
        """Whether the file at the path is still this source."""
        return self.data is not None or identity_of_path(self.path) == self.identity

    def held(self, fp: Any) -> Source:
        """Return a source that does not depend on `fp`, which is about to be closed."""
        if self.data is not None or self.file is not None or not hasattr(os, "preadv"):
            return self
        try:
            return self._replace(file=HeldFile(fp))
        except OSError:  # too many open files
            return self

    def open(self) -> io.BytesIO:
        """Return the file's content. Raises OSError if it was modified."""
        if self.data is not None:
            return io.BytesIO(self.data)
        if self.file is not None:
            return io.BytesIO(self.file.read(self.stamp))
        with open(self.path, "rb") as file:
            data = file.read()
            if stamp_of(os.fstat(file.fileno())) != self.stamp:
                raise OSError(f"{self.path} was modified while an image from it was in use")
        return io.BytesIO(data)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return values that change when a file is written to."""
    mount = network_mount(status.st_dev)
    inode = status.st_ino if mount is None or mount.has_inodes else 0
    return status.st_dev, inode, status.st_size, status.st_mtime_ns


def source_of(image: Any, fp: Any) -> Source | None:
    """Return the source of an opened image; None if it cannot be determined, or the format is not supported."""
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
    identity = identity_of_status(status, image.fp.fileno())
    if identity is None:
        return None
    return Source(identity, stamp_of(status), None, path, status.st_size)


def _is_plain_file(fp: Any) -> bool:
    """Whether reading an open file returns the bytes of the file on disk: not a part of it, nothing decompressed."""
    is_reader = type(fp) is io.BufferedReader or type(fp).__module__.startswith("hasten.")
    return is_reader and type(getattr(fp, "raw", None)) is io.FileIO
