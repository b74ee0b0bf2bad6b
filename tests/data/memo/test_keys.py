"""What identifies a file: on a local disk its inode, on a network mount what stays the same there."""

import os
import sys

import pytest

from hasten.data.memo import image_source, keys
from hasten.data.memo.image_source import stamp_of
from hasten.data.memo.keys import identity_of_open, identity_of_path, identity_of_status, size_of
from hasten.mounts import NetworkMount

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux describes them")
NFS, BUCKET = NetworkMount(b"nfs4 server:/export", True), NetworkMount(b"fuse.mountpoint-s3 bucket", False)


@pytest.fixture
def mounted(monkeypatch):
    def mount(kind):
        for module in (keys, image_source):
            monkeypatch.setattr(module, "network_mount", lambda device: kind)

    return mount


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 7)
    return path


def status(path, **changed):
    """The status of a file as it was an hour ago, with some fields changed."""
    found = os.stat(path)
    names = {"mode": 0, "inode": 1, "device": 2, "size": 6}
    fields, times = list(found), {"st_mtime_ns": 10**18, "st_ctime_ns": 10**18}
    for name, value in changed.items():
        if name in names:
            fields[names[name]] = value
        else:
            times[f"st_{name}_ns"] = value
    return os.stat_result(fields[:10], {"st_mtime": 1e9, "st_ctime": 1e9, **times})


@pytest.mark.parametrize(
    ("kind", "ignored", "told"),
    [
        (None, [], ["inode", "device", "size", "mtime", "ctime"]),
        (NFS, ["device"], ["inode", "size", "mtime", "ctime"]),
        (BUCKET, ["device", "inode"], ["size", "mtime", "ctime"]),
    ],
)
def test_what_changes_the_key(mounted, file, kind, ignored, told):
    mounted(kind)
    first = identity_of_status(status(file), file)
    for name in ignored:
        assert identity_of_status(status(file, **{name: 77}), file) == first
    for name in told:
        assert identity_of_status(status(file, **{name: 77}), file) != first
    assert size_of(first) == 7


def test_without_inodes_the_path_is_part_of_the_key(mounted, file, tmp_path):
    other = tmp_path / "b.bin"
    other.write_bytes(b"y" * 7)
    link = tmp_path / "link.bin"
    link.symlink_to(file)
    mounted(BUCKET)
    known = status(file)
    assert identity_of_status(known, file) != identity_of_status(known, other)
    assert identity_of_status(known, file) == identity_of_status(known, link)
    link.unlink()
    link.symlink_to(other)
    assert identity_of_status(known, link) == identity_of_status(known, other), "the link leads elsewhere now"


def test_an_open_file_has_the_key_of_its_path(mounted, file, monkeypatch):
    monkeypatch.setattr(keys, "QUIET_SECONDS", -1e9)
    for kind in (None, NFS, BUCKET):
        mounted(kind)
        with open(file, "rb") as opened:
            assert identity_of_open(opened.fileno()) == identity_of_path(file) is not None


def test_an_open_file_that_was_removed_has_no_key_without_inodes(mounted, file, monkeypatch):
    monkeypatch.setattr(keys, "QUIET_SECONDS", -1e9)
    mounted(BUCKET)
    with open(file, "rb") as opened:
        file.unlink()
        assert identity_of_open(opened.fileno()) is None


def test_another_mount_has_other_keys(mounted, file):
    found = set()
    for source in (b"fuse.mountpoint-s3 one", b"fuse.mountpoint-s3 two"):
        mounted(NetworkMount(source, False))
        found.add(identity_of_status(status(file), file))
    assert len(found) == 2


def test_an_image_in_use_is_not_taken_for_modified_because_its_inode_number_is_new(mounted, file):
    for kind, is_same in ((BUCKET, True), (NFS, False), (None, False)):
        mounted(kind)
        assert (stamp_of(status(file)) == stamp_of(status(file, inode=77))) == is_same
