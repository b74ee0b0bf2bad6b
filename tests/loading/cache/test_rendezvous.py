import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from hasten.loading.cache.ram_tier import RamTier
from hasten.loading.cache.rendezvous import host_key, meet
from hasten.loading.cache.tiers import MISSING
from hasten.loading.memory.packing import pack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets and memfd")

RANK = """
import sys
from hasten.loading.cache.rendezvous import meet

file = meet(sys.argv[1].encode(), size=8192)
memory = file.map(8192)
print("ready", flush=True)
for line in sys.stdin:
    place, byte = map(int, line.split())
    before, memory[place] = memory[place], byte
    print(before, flush=True)
"""


class Rank:
    """A process started apart."""

    def __init__(self, key):
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ready(self):
        assert self.process.stdout.readline() == "ready\n"
        return self

    def swap(self, place, byte):
        print(place, byte, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def ranks():
    started = []

    def start(*keys):
        new = [Rank(key) for key in keys]
        started.extend(new)
        return [rank.ready() for rank in new]

    yield start
    for rank in started:
        if rank.process.poll() is None:
            rank.kill()


def signs():
    with open("/proc/net/unix", encoding="utf-8") as file:
        return sum("@hasten-" in line for line in file)


def test_ranks_started_at_once_and_late_share_a_file_and_leave_nothing(ranks):
    before = signs()
    key = f"shared {os.getpid()}"
    first, second, apart = ranks(key, key, key + "!")
    assert first.swap(5, 1) == 0 and second.swap(5, 2) == 1 and apart.swap(5, 9) == 0
    first.kill()
    (late,) = ranks(key)
    assert late.swap(5, 3) == 2 and second.swap(5, 4) == 3
    for rank in (second, late, apart):
        rank.kill()
    assert signs() == before
    (alone,) = ranks(key)
    assert alone.swap(5, 1) == 0


def test_tiers_that_meet_share_what_is_kept():
    key = b"tiers %d" % os.getpid()
    one, other = (RamTier(1 << 20, num_samples=10, host_key=key) for _ in range(2))
    apart = RamTier(1 << 20, num_samples=10, host_key=key + b"!")
    packed = pack(np.arange(1000))
    assert one.put(b"\3".ljust(16, b"\0"), packed, 1.0) and not other.put(b"\3".ljust(16, b"\0"), packed, 1.0)
    one.close()
    assert other.get(b"\3".ljust(16, b"\0"), lambda value, _: int(value.sum())) == 499_500
    assert apart.get(b"\3".ljust(16, b"\0"), lambda value, _: value) is MISSING
    other.close()
    apart.close()


def test_a_file_lives_as_long_as_one_who_has_it_and_sizes_do_not_mix():
    key = b"size %d" % os.getpid()
    one, same, other = meet(key, size=10_000), meet(key, size=10_000), meet(key, size=20_000)
    one.map(10_000)[5:8] = b"abc"
    assert same.map(10_000)[5:8] == b"abc" and other.map(10_000)[5:8] == b"\0\0\0"
    one.close()
    again = meet(key, size=10_000)
    assert again.map(10_000)[5:8] == b"abc"
    same.close()
    again.close()
    fresh = meet(key, size=10_000)
    assert fresh.map(10_000)[5:8] == b"\0\0\0"
    fresh.close()
    other.close()


def test_a_sign_that_leads_elsewhere_is_not_followed():
    import hashlib
    import socket

    key = b"liar %d" % os.getpid()
    name = f"hasten-{hashlib.sha256(key + (10_000).to_bytes(8, 'little')).hexdigest()[:32]}"
    with open("/dev/null", "rb") as file, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as liar:
        liar.bind(f"\0{name}/{os.getpid()}/{file.fileno()}")
        found = meet(key, size=10_000)
    assert os.fstat(found.descriptor).st_size == 10_000
    found.close()


class Listed:
    """A recipe that reads the files it lists."""

    def __init__(self, files, fingerprint=b"f"):
        self.files, self.fingerprint = files, fingerprint

    def identity(self, index):
        return self.files[index]


def test_a_host_key_is_the_same_for_the_same_samples_alone():
    files = [b"%d" % number for number in range(1000)]
    key = host_key(Listed(files), num_samples=1000)
    assert key == host_key(Listed(list(files)), num_samples=1000)
    others = [
        host_key(Listed(files), num_samples=999),
        host_key(Listed(files[::-1]), num_samples=1000),
        host_key(Listed(files, b"g"), num_samples=1000),
        host_key(Listed([*files[:-1], b"x"]), num_samples=1000),
    ]
    assert len({key, *others}) == 5
    assert host_key(Listed([None] * 5), num_samples=5) is None
    assert host_key(Listed([b"only"]), num_samples=1) is not None
    assert host_key(Listed([]), num_samples=0) is not None
