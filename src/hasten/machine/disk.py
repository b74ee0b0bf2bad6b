"""Measure how fast a folder's disk is read, with and without the page cache.

A read counts as cold only if the pages were really dropped: a file system may ignore the request, and then the rate would be
that of memory. Caches outside this system (of a disk or a hypervisor) cannot be detected, so a virtual disk may look faster
than it is.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from hasten.errors import DirectoryError
from hasten.mounts import NETWORK
from hasten.records import DiskKind, DiskSpeed, FileRead

BLOCK = 1 << 20
PIECE = 128 << 10  # about one photo; 4 KiB reads would measure read-ahead rather than the disk
DROPPED_SHARE = 0.1  # largest share of pages that may remain: the kernel keeps pages in use
ON_DISK_SHARE = 0.8  # smallest share of the bytes that a cold read gets from the disk

NO_DROP = "this system cannot drop a file from the page cache"
NOT_DROPPED = "the file system did not drop the file from the page cache"


def measure_disk(
    folder: str,
    *,
    max_bytes: int = 256 << 20,
    seconds: float = 4.0,
    clock: Callable[[], float] = time.perf_counter,
) -> DiskSpeed:
    """Read rates of the disk of `folder`, measured with an unlinked temporary file there.

    The file is at most `max_bytes` and 5% of what is free; writing, reading in order and reading at random
    take about `seconds` together. Raises DirectoryError if there is no such folder.
    """
    if not Path(folder).is_dir():
        raise DirectoryError(f"no such folder: {folder}; pass one that exists")
    file_system, kind = find_disk(folder)
    free = shutil.disk_usage(folder).free
    size = min(max_bytes, free // 20) // BLOCK * BLOCK
    rates: tuple[float | None, float | None] = (None, None)
    note = ""
    if kind == "memory":
        size, note = 0, "the folder is in memory, so there is no disk to measure"
    elif size < 8 * BLOCK:
        size, note = 0, "not enough free space for a test file"
    else:
        try:
            # On POSIX it is unlinked before a byte is written, so it never stays, even after a crash.
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                size = _fill(file.fileno(), size=size, seconds=seconds / 2, clock=clock)
                note, rates = _rates(file.fileno(), size=size, seconds=seconds / 4, clock=clock)
        except OSError as error:
            size, note = 0, _write_problem(error)
    return DiskSpeed(
        folder=folder,
        file_system=file_system,
        kind=kind,
        sequential_bytes_per_second=rates[0],
        random_bytes_per_second=rates[1],
        random_read_bytes=PIECE,
        file_bytes=size,
        free_bytes=free,
        note=note,
    )


def _write_problem(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "the folder is not writable, so no test file could be written"
    return f"the test file could not be written ({error.strerror or error})"


def _fill(handle: int, *, size: int, seconds: float, clock: Callable[[], float]) -> int:
    """Write up to `size` bytes that do not compress, and return how many."""
    block = os.urandom(BLOCK)
    written, deadline = 0, clock() + seconds
    while written < size and (written < 8 * BLOCK or clock() < deadline):
        # Every block is different, because some file systems store equal blocks once.
        written += os.write(handle, written.to_bytes(8, "little") + block[8:])
        if written % (16 * BLOCK) == 0:
            os.fsync(handle)  # so that the deadline applies to the disk, not to memory
    os.fsync(handle)
    return written // BLOCK * BLOCK


def _rates(
    handle: int, *, size: int, seconds: float, clock: Callable[[], float]
) -> tuple[str, tuple[float | None, float | None]]:
    problem = _drop(handle, size=size)
    if problem:
        return problem, (None, None)
    in_order = list(range(0, size, BLOCK))
    sequential = _pace(handle, in_order, length=BLOCK, seconds=seconds, clock=clock)
    problem = _drop(handle, size=size)
    if problem:
        return problem, (sequential, None)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    pieces = list(range(0, size, PIECE))
    random.Random(0).shuffle(pieces)
    return "", (sequential, _pace(handle, pieces, length=PIECE, seconds=seconds, clock=clock))


def _pace(
    handle: int, offsets: Sequence[int], *, length: int, seconds: float, clock: Callable[[], float]
) -> float | None:
    """Bytes per second of reading `length` bytes at each offset, for at most `seconds`."""
    buffer = bytearray(length)
    done, started = 0, clock()
    for offset in offsets:
        done += os.preadv(handle, [buffer], offset)
        if clock() - started > seconds:
            break
    spent = clock() - started
    return done / spent if spent > 0 else None


def _drop(handle: int, *, size: int) -> str:
    """Drop a file's clean pages from the page cache. Returns "" if they were dropped, or the reason why not."""
    if not hasattr(os, "posix_fadvise"):
        return NO_DROP
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    share = resident_share(handle, size=size)
    if share is None:
        return "this system does not report whether a file is in the page cache"
    return NOT_DROPPED if share > DROPPED_SHARE else ""


def resident_share(handle: int, *, size: int) -> float | None:
    """Share of a file's pages in memory (mincore); None if the system does not report it.

    For a file that the caller may not write, Linux answers that every page is in memory.
    """
    if size == 0 or os.name != "posix":
        return None
    num_pages = -(-size // mmap.PAGESIZE)
    states = (ctypes.c_ubyte * num_pages)()
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        # ctypes needs writable memory to take its address; the private copy is never written.
        with mmap.mmap(handle, size, access=mmap.ACCESS_COPY) as view:
            start = ctypes.c_ubyte.from_buffer(view)
            failed = mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), states)
            del start
    except (OSError, AttributeError, ValueError):
        return None
    return None if failed else sum(state & 1 for state in states) / num_pages


def read_twice(
    files: Sequence[str],
    *,
    max_bytes: int = 256 << 20,
    seconds: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
) -> FileRead:
    """Read the same files twice: first with their pages dropped; at most `max_bytes`, cold for at most `seconds`.

    Missing and unreadable files are skipped. Directories and inodes stay in memory, so the first
    lookup of a file costs more than this shows.
    """
    chosen = _choose(files, max_bytes=max_bytes)
    if not chosen:
        return FileRead(num_files=0, num_bytes=0, cold_seconds=None, warm_seconds=0.0, note="no file to read")
    shares = [share for path in chosen if (share := _drop_path(path)) is not None]
    before = _disk_bytes()
    done, num_bytes, cold = _read_files(chosen, seconds=seconds, clock=clock)
    after = _disk_bytes()
    _, _, warm = _read_files(done, seconds=float("inf"), clock=clock)
    from_disk = None if before is None or after is None else after - before
    note = _why_warm(shares, num_files=len(chosen), from_disk=from_disk, num_bytes=num_bytes)
    return FileRead(
        num_files=len(done),
        num_bytes=num_bytes,
        cold_seconds=None if note else cold,
        warm_seconds=warm,
        note=note,
    )


def _why_warm(shares: Sequence[float], *, num_files: int, from_disk: int | None, num_bytes: int) -> str:
    """Why a read after dropping pages was not cold; "" if it was. Either piece of evidence is enough."""
    if not hasattr(os, "posix_fadvise"):
        return NO_DROP
    if len(shares) == num_files and sum(shares) / num_files <= DROPPED_SHARE:
        return ""
    if from_disk is not None and from_disk >= ON_DISK_SHARE * num_bytes:
        return ""
    return NOT_DROPPED


def _choose(files: Sequence[str], *, max_bytes: int) -> list[str]:
    chosen: list[str] = []
    room = max_bytes
    for path in dict.fromkeys(files):
        try:
            size = Path(path).stat().st_size
        except OSError:
            continue
        if 0 < size <= room and os.access(path, os.R_OK) and Path(path).is_file():
            chosen.append(path)
            room -= size
    return chosen


def _drop_path(path: str) -> float | None:
    if not hasattr(os, "posix_fadvise"):
        return None
    try:
        with Path(path).open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return resident_share(file.fileno(), size=os.fstat(file.fileno()).st_size)
    except OSError:
        return None


def _read_files(files: Sequence[str], *, seconds: float, clock: Callable[[], float]) -> tuple[list[str], int, float]:
    """The files that were read, their bytes, and the seconds it took; stops after `seconds`."""
    done: list[str] = []
    num_bytes, started = 0, clock()
    buffer = bytearray(BLOCK)
    for path in files:
        if clock() - started > seconds:
            break
        try:
            with Path(path).open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    num_bytes += count
        except OSError:
            continue
        done.append(path)
    return done, num_bytes, clock() - started


def _disk_bytes() -> int | None:
    """Bytes that this thread has read from a disk so far."""
    try:
        text = Path("/proc/thread-self/io").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines())
    return int(fields["read_bytes"])


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
