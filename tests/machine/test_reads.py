"""What several readers get from a store, told by canned rates, and from a real one on this machine."""

import os
import sys

import pytest

from hasten.cli import main
from hasten.errors import DataError
from hasten.machine import reads
from hasten.machine.reads import CONCURRENCIES, conclude, is_url, measure_mount, measure_url
from hasten.mounts import NetworkMount, network_mount
from hasten.records import ReadRate

sys.path.append(os.path.join(os.path.dirname(__file__), os.pardir, "data"))

from remote_server import Server


@pytest.fixture
def server():
    with Server() as running:
        yield running


@pytest.mark.parametrize(
    ("rates", "num_readers", "bound"),
    [
        ((10, 10, 10), 1, "bandwidth"),
        ((95, 100, 100), 1, "bandwidth"),
        ((10, 40, 41), 4, "latency"),
        ((10, 40, 160), 16, "latency"),
        ((10, 40, 20), 4, "latency"),  # more readers are in each other's way
    ],
)
def test_the_fewest_readers_that_reach_the_best_rate_hide_the_latency(rates, num_readers, bound):
    made = tuple(ReadRate(number, 10, 1000 * rate, 1.0, 0.05) for number, rate in zip(CONCURRENCIES, rates))
    found = conclude("x", "s3", made, read_again=False)
    assert (found.num_readers, found.bound) == (num_readers, bound)


def test_a_url_is_measured_with_pieces_of_the_object(server):
    server.fill(1, 1_000_000)
    found = measure_url(f"{server.url}/0.bin", seconds=0.2)
    assert found.file_system == "http" and all(rate.num_reads and not rate.num_failed for rate in found.rates)
    assert 4 < server.most_open <= 17


def test_reads_that_fail_are_counted_apart(server):
    server.fill(1, 1_000_000)
    server.fails = lambda method, name, number: method == "GET" and number % 5 == 0
    found = measure_url(f"{server.url}/0.bin", seconds=0.2)
    assert sum(rate.num_failed for rate in found.rates) > 0


def test_the_files_of_a_folder_are_read_in_pieces(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(os.urandom(300_000))
    found = measure_mount(str(tmp_path), seconds=0.05)
    assert all(rate.num_bytes for rate in found.rates)
    assert measure_mount(str(tmp_path / "nothing"), seconds=0.05) is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("{server}/missing", "404.*check the address"),
        ("http://127.0.0.1:1/x", "cannot be read.*127.0.0.1:1"),
        ("nothing://a/b", "Protocol not known"),
        ("gdrive://a/b", r"pip install 'fsspec\[gdrive\]'"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(server, url, message, capsys):
    with pytest.raises(DataError, match=message) as raised:
        measure_url(url.format(server=server.url))
    assert "\n" not in str(raised.value)
    assert main(["check", url.format(server=server.url)]) == 2


def test_a_store_that_does_not_answer_is_given_up(server, monkeypatch):
    server.fill(1)
    server.delay = 2.0
    monkeypatch.setattr(reads, "ANSWER_SECONDS", 0.2)
    with pytest.raises(DataError, match="no answer within"):
        measure_url(f"{server.url}/0.bin")


def test_a_folder_is_not_a_url():
    assert is_url("s3://bucket/x") and is_url("https://host/x")
    assert not is_url("/data") and not is_url("data") and not is_url("file:///data")


# Mounts

MOUNTINFO = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 22 0:41 / /nfs rw shared:2 - nfs4 server:/export rw,vers=4.2
41 22 0:42 / /bucket rw - fuse.mountpoint-s3 mountpoint-s3 rw
42 22 0:43 / /share rw shared:4 master:1 - cifs //host/share rw
43 22 0:44 / /ntfs rw - fuseblk /dev/sdb1 rw
"""


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux describes mounts")
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (os.makedev(259, 2), None),
        (os.makedev(0, 41), NetworkMount(b"nfs4 server:/export", True)),
        (os.makedev(0, 42), NetworkMount(b"fuse.mountpoint-s3 mountpoint-s3", False)),
        (os.makedev(0, 43), NetworkMount(b"cifs //host/share", False)),
        (os.makedev(0, 44), None),
        (os.makedev(0, 99), None),
    ],
)
def test_a_network_mount_is_known_by_its_device_number(number, expected, tmp_path, monkeypatch):
    (tmp_path / "mountinfo").write_text(MOUNTINFO)
    real = open
    monkeypatch.setattr("builtins.open", lambda path, *rest: real(tmp_path / "mountinfo", *rest))
    assert network_mount.__wrapped__(number) == expected
