"""What a disk gives: canned mounts, and small real files whose times nobody looks at."""

import errno
import itertools
import os
import sys

import pytest

from hasten.errors import DirectoryError
from hasten.machine import disk
from hasten.machine.disk import Mount, classify, find_mount, measure_disk, read_twice, resident_share

MOUNTS = [
    Mount(*mount)
    for mount in (
        ("/", "ext4", "/dev/nvme0n1p2"),
        ("/data", "nfs4", "server:/export"),
        ("/data/my disk", "xfs", "/dev/sda1"),
        ("/dev/shm", "tmpfs", "tmpfs"),
        ("/dev/shm", "ramfs", "ramfs"),
    )
]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="pages can be dropped on Linux only")


def ticking(step=0.01):
    count = itertools.count()
    return lambda: next(count) * step


@pytest.mark.parametrize(
    ("folder", "file_system"),
    [
        ("/home/me", "ext4"),
        ("/data", "nfs4"),
        ("/data/my disk/x", "xfs"),
        ("/data2", "ext4"),
        ("/dev/shm", "ramfs"),  # the later mount hides the earlier
    ],
)
def test_a_folder_lies_on_the_mount_nearest_to_it(folder, file_system):
    assert find_mount(folder, mounts=MOUNTS).file_system == file_system


@pytest.mark.parametrize(
    ("file_system", "name", "rotational", "kind"),
    [
        ("ext4", "nvme0n1p2", False, "ssd"),
        ("ext4", "sda1", True, "hdd"),
        ("ext4", "vda", True, "virtual"),
        ("ext4", "vda", False, "ssd"),
        ("nfs4", None, None, "network"),
        ("tmpfs", None, None, "memory"),
        ("overlay", None, None, "overlay"),
        ("zfs", None, None, None),
    ],
)
def test_the_kind_of_a_disk_is_told_by_its_file_system_and_its_flag(file_system, name, rotational, kind):
    assert classify(file_system, disk=name, rotational=rotational) == kind


def test_measuring_leaves_no_file(tmp_path):
    found = measure_disk(str(tmp_path), max_bytes=8 << 20, clock=ticking())
    assert list(tmp_path.iterdir()) == []
    assert found.file_bytes in (0, 8 << 20)


def test_an_interrupted_measurement_leaves_no_file(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "_rates", interrupt)
    monkeypatch.setattr(disk, "find_disk", lambda folder: ("ext4", "ssd"))
    with pytest.raises(KeyboardInterrupt):
        measure_disk(str(tmp_path), max_bytes=8 << 20, clock=ticking())
    assert list(tmp_path.iterdir()) == []


@on_linux
def test_a_cold_rate_is_given_only_when_the_pages_were_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "find_disk", lambda folder: ("ext4", "ssd"))
    monkeypatch.setattr(disk, "resident_share", lambda handle, *, size: 0.0)
    gone = measure_disk(str(tmp_path), max_bytes=8 << 20, clock=ticking())
    assert gone.sequential_bytes_per_second > 0
    assert gone.random_bytes_per_second > 0
    monkeypatch.setattr(disk, "resident_share", lambda handle, *, size: 1.0)
    kept = measure_disk(str(tmp_path), max_bytes=8 << 20, clock=ticking())
    assert (kept.sequential_bytes_per_second, kept.random_bytes_per_second) == (None, None)
    assert "did not drop the file" in kept.note


def test_a_system_without_a_way_to_drop_pages_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "find_disk", lambda folder: (None, None))
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    found = measure_disk(str(tmp_path), max_bytes=8 << 20, clock=ticking())
    assert found.sequential_bytes_per_second is None
    assert found.note == disk.NO_DROP


def test_a_folder_in_memory_is_not_measured_as_a_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "find_disk", lambda folder: ("tmpfs", "memory"))
    found = measure_disk(str(tmp_path))
    assert (found.file_bytes, found.sequential_bytes_per_second) == (0, None)
    assert "is in memory" in found.note


def test_a_folder_that_cannot_be_written_is_told_without_rates(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(disk, "find_disk", lambda folder: ("ext4", "ssd"))
    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    found = measure_disk(str(tmp_path))
    assert (found.kind, found.sequential_bytes_per_second, found.file_bytes) == ("ssd", None, 0)
    assert "not writable" in found.note


def test_a_full_disk_is_not_filled_further(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "find_disk", lambda folder: ("ext4", "ssd"))
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: _Usage())
    assert "not enough free space" in measure_disk(str(tmp_path)).note


class _Usage:
    free = 100 << 20


def test_a_folder_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DirectoryError, match=r"no such folder: .*absent; pass one that exists"):
        measure_disk(str(tmp_path / "absent"))


@on_linux
def test_pages_just_written_lie_in_memory(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 16))
    with path.open("rb") as file:
        assert resident_share(file.fileno(), size=1 << 16) == 1.0
        assert resident_share(file.fileno(), size=0) is None


def test_the_same_files_are_read_twice(tmp_path):
    paths = []
    for index in range(3):
        path = tmp_path / str(index)
        path.write_bytes(bytes(1000 + index))
        paths.append(str(path))
    found = read_twice([*paths, str(tmp_path / "gone"), paths[0]], clock=ticking())
    assert (found.num_files, found.num_bytes) == (3, 3003)
    assert found.warm_seconds > 0
    assert (found.cold_seconds is None) == bool(found.note)


def test_no_more_is_read_than_allowed(tmp_path):
    paths = [tmp_path / str(index) for index in range(4)]
    for path in paths:
        path.write_bytes(bytes(1000))
    found = read_twice([str(path) for path in paths], max_bytes=2500, clock=ticking())
    assert (found.num_files, found.num_bytes) == (2, 2000)


def test_nothing_to_read_is_said():
    found = read_twice([])
    assert (found.num_files, found.cold_seconds, found.note) == (0, None, "no file to read")


@on_linux
@pytest.mark.parametrize(
    ("shares", "from_disk", "is_cold"),
    [
        ([0.0, 0.0], None, True),  # the pages were seen to be gone
        ([1.0, 1.0], 950, True),  # of a file one may not write they never are; the disk's counter tells
        ([1.0, 1.0], 10, False),
        ([0.0], None, False),  # one file could not be asked
    ],
)
def test_a_read_is_cold_only_with_a_witness(shares, from_disk, is_cold):
    why = disk._why_warm(shares, num_files=2, from_disk=from_disk, num_bytes=1000)
    assert (why == "") == is_cold
