"""The kind of disk under a folder; unknown on macOS and Windows."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from hasten.records import DiskKind

NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "drvfs", "ceph", "lustre", "beegfs", "gpfs",
    "glusterfs", "afs", "fuse.sshfs", "fuse.gcsfuse", "fuse.s3fs", "fuse.mountpoint-s3", "fuse.goofys",
    "fuse.juicefs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph", "fuse.blobfuse2", "wekafs",
}  # fmt: skip
MEMORY = {"tmpfs", "ramfs"}


class Mount(NamedTuple):
    """A mounted file system."""

    folder: str
    file_system: str
    device: str  # "/dev/nvme0n1p2"


def find_mount(folder: str, *, mounts: Sequence[Mount]) -> Mount | None:
    """The mount of `folder`, an absolute path without links: the longest match, and the latest of those."""
    inside = [mount for mount in mounts if Path(folder).is_relative_to(mount.folder)]
    return max(reversed(inside), key=lambda mount: len(mount.folder), default=None)


def classify(file_system: str, *, disk: str | None, rotational: bool | None) -> DiskKind | None:
    """The kind of disk: "network" "memory" "overlay" "virtual" "ssd" "hdd", or None if unknown.

    A virtual disk's "rotational" flag is a default that nobody set, so it is believed only when it says no.
    """
    if file_system in NETWORK:
        return "network"
    if file_system in MEMORY:
        return "memory"
    if rotational is None:
        return "overlay" if file_system in ("overlay", "aufs") else None
    if not rotational:
        return "ssd"
    return "virtual" if disk is not None and re.match(r"x?vd[a-z]", disk) else "hdd"


def find_disk(folder: str) -> tuple[str | None, DiskKind | None]:
    """File system and kind of the disk under `folder`."""
    if sys.platform != "linux":
        return None, None
    try:
        folder, number = os.path.realpath(folder), os.stat(folder).st_dev
        mounted = [Mount(one.mountpoint, one.fstype, one.device) for one in psutil.disk_partitions(all=True)]
    except OSError:
        return None, None
    mount = find_mount(folder, mounts=mounted)
    if mount is None:
        return None, None
    disk = _find_block(f"{os.major(number)}:{os.minor(number)}", mount.device)
    kind = classify(mount.file_system, disk=None if disk is None else disk.name, rotational=_is_rotational(disk))
    return mount.file_system, kind


def _find_block(number: str, device: str) -> Path | None:
    # btrfs and zfs mounts have a device number that is not a disk's, but a source with a name.
    name = Path(os.path.realpath(device)).name if device.startswith("/dev/") else "none"
    places = Path("/sys/dev/block", number), Path("/sys/class/block", name)
    return next((place.resolve() for place in places if place.exists()), None)


def _is_rotational(disk: Path | None) -> bool | None:
    for place in () if disk is None else (disk, disk.parent):  # a partition has the flags of its disk
        try:
            return (place / "queue" / "rotational").read_text(encoding="utf-8").strip() == "1"
        except OSError:
            continue
    return None
