"""Keys of memoized values: 128-bit digests of a source's identity and of the computation.

A file is identified by device, inode, size, and the times of its last change (mtime and ctime, in nanoseconds). Programs cannot
set ctime, so a file that is rewritten, replaced, or reached through another symlink gets another key. On a network file system
the device is what is mounted, and where files do not keep their inode numbers, the inode is the file's path. A file that changed a
moment ago may change again within the resolution of its timestamps, so nothing computed from it is stored until it has been
unchanged for a while. Bytes in memory are identified by their BLAKE3 digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import time
from typing import Any

from blake3 import blake3

from hasten.mounts import network_mount

KEY_BYTES = 16
QUIET_SECONDS = 2.0
"""Longer than the timestamp resolution of any file system in use."""

_MASK = (1 << 64) - 1
_IDENTITY = struct.Struct("<QQQqq")


def identity_of_status(status: os.stat_result, place: Any) -> bytes | None:
    """Return the identity of a regular file's content; None for anything else, or for a recently changed file.

    Args:
        status: the file's status.
        place: its path, or its descriptor if it is open.
    """
    if not stat.S_ISREG(status.st_mode):
        return None
    if time.time() - max(status.st_mtime, status.st_ctime) < QUIET_SECONDS:
        return None
    device, inode = status.st_dev & _MASK, status.st_ino & _MASK
    mount = network_mount(status.st_dev)
    if mount is not None:
        device = _number_of(mount.source)
        if not mount.has_inodes:
            path = _path_of(place)
            if path is None:
                return None
            inode = _number_of(path)
    return _IDENTITY.pack(device, inode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def identity_of_path(path: Any) -> bytes | None:
    """Return the identity of the file at a path; None if it has none, or `stat` fails."""
    try:
        return identity_of_status(os.stat(path), path)
    except (OSError, TypeError, ValueError):
        return None


def identity_of_open(descriptor: int) -> bytes | None:
    """Return the identity of an open file; None if it has none. Raises OSError if it is closed."""
    return identity_of_status(os.fstat(descriptor), descriptor)


def _number_of(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _path_of(place: Any) -> bytes | None:
    """Return the path without links of a file; None if it is not known."""
    if not isinstance(place, int):
        return os.fsencode(os.path.realpath(place))
    try:
        path = os.readlink(b"/proc/self/fd/%d" % place)
    except OSError:
        return None
    return None if path.endswith(b" (deleted)") else path


def size_of(identity: bytes) -> int:
    """Return the size in bytes of the file with an identity."""
    return int(_IDENTITY.unpack(identity)[2])


def identity_of_bytes(data: Any) -> bytes:
    """Return the identity of bytes in memory: any object with the buffer interface."""
    return blake3(data).digest(KEY_BYTES)


def key_of(*parts: bytes) -> bytes:
    """Return the key for `parts`: an identity or another key, and what was computed from it."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()
