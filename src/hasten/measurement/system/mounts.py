"""What kind of disk lies under a folder.

In: the text of /proc/self/mountinfo and the flags of /sys. Out: the file system's name and the disk's kind.
Refuses to know how fast it is. On macOS and Windows both are None.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "drvfs", "ceph", "lustre", "beegfs", "gpfs",
    "glusterfs", "afs", "fuse.sshfs", "fuse.gcsfuse", "fuse.s3fs", "fuse.mountpoint-s3", "fuse.goofys",
    "fuse.juicefs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph", "fuse.blobfuse2", "wekafs",
}  # fmt: skip
MEMORY = {"tmpfs", "ramfs"}


@dataclass(frozen=True)
class Mount:
    """One mounted file system."""

    folder: str
    device: str  # "259:2"
    file_system: str
    source: str  # "/dev/nvme0n1p2"


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Every mount of a /proc/self/mountinfo, in the order in which they were made."""
    mounts: list[Mount] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) >= 5 and len(after) >= 2:
            mounts.append(Mount(_unescape(before[4]), before[2], after[0], _unescape(after[1])))
    return mounts


def find_mount(folder: str, *, mounts: list[Mount]) -> Mount | None:
    """The mount that `folder`, an absolute path without links, lies on: the longest, then the last made."""
    inside = [mount for mount in mounts if folder == mount.folder or _lies_in(folder, mount.folder)]
    return max(reversed(inside), key=lambda mount: len(mount.folder), default=None)


def classify(file_system: str, *, disk: str | None, rotational: bool | None) -> str | None:
    """The kind of disk: "network" "memory" "overlay" "virtual" "ssd" "hdd", or None when nothing tells.

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


def find_disk(folder: str) -> tuple[str | None, str | None]:
    """File system and kind of the disk under `folder`."""
    try:
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    except OSError:
        return None, None
    mount = find_mount(os.path.realpath(folder), mounts=mounts)
    if mount is None:
        return None, None
    disk = _find_block(mount)
    kind = classify(mount.file_system, disk=None if disk is None else disk.name, rotational=_is_rotational(disk))
    return mount.file_system, kind


def _find_block(mount: Mount) -> Path | None:
    # btrfs and zfs mount under a number that is no disk's; what they were mounted from has a name.
    for place in (Path("/sys/dev/block", mount.device), Path("/sys/class/block", _name(mount.source))):
        if place.exists():
            return place.resolve()
    return None


def _name(source: str) -> str:
    return Path(os.path.realpath(source)).name if source.startswith("/dev/") else "none"


def _is_rotational(disk: Path | None) -> bool | None:
    if disk is None:
        return None
    for place in (disk, disk.parent):  # a partition's flags are its disk's
        try:
            return (place / "queue" / "rotational").read_text(encoding="utf-8").strip() == "1"
        except OSError:
            continue
    return None


def _lies_in(folder: str, mount: str) -> bool:
    return folder.startswith(mount if mount.endswith("/") else mount + "/")


def _unescape(text: str) -> str:
    # The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
