"""Network file systems: their names, and which of them a file is on."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "drvfs", "ceph", "lustre", "beegfs", "gpfs",
    "glusterfs", "afs", "fuse.sshfs", "fuse.gcsfuse", "fuse.s3fs", "fuse.mountpoint-s3", "fuse.goofys",
    "fuse.juicefs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph", "fuse.blobfuse2", "wekafs",
}  # fmt: skip
WITHOUT_INODES = {"cifs", "smb3", "smbfs", "9p", "virtiofs", "drvfs"}
"""Where a file may have another inode number later, as on every FUSE file system."""


class NetworkMount(NamedTuple):
    """A mounted network file system, or one in user space (FUSE)."""

    source: bytes
    """The file system's name and what is mounted: the same after another mount, unlike the device number."""
    has_inodes: bool
    """A file keeps its inode number."""


@functools.lru_cache(maxsize=1024)
def network_mount(device: int) -> NetworkMount | None:
    """Return the network file system with a device number (`st_dev`); None for a local one, or if it is not known."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().splitlines()
    except OSError:  # not on Linux
        return None
    number = b"%d:%d" % (os.major(device), os.minor(device))
    for line in lines:
        place, _, kind = line.partition(b" - ")
        if place.split()[2] == number:
            name, source = kind.split()[:2]
            is_fuse = name == b"fuse" or name.startswith(b"fuse.")
            if not is_fuse and name.decode() not in NETWORK:
                return None
            return NetworkMount(name + b" " + source, not is_fuse and name.decode() not in WITHOUT_INODES)
    return None
