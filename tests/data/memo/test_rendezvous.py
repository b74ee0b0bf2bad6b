import os
import signal
import subprocess
import sys

import pytest

from hasten.data.memo.rendezvous import shared_file

pytestmark = [
    pytest.mark.contract,  # processes that have nothing in common
    pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets and memfd"),
]

RANK = """
import sys
from hasten.data.memo.rendezvous import shared_file

file = shared_file(sys.argv[1].encode(), size=8192)
memory = file.map(8192)
print("ready", flush=True)
for line in sys.stdin:
    place, byte = map(int, line.split())
    before, memory[place] = memory[place], byte
    print(before, flush=True)
"""


class Rank:
    """An independently started process."""

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


def test_ranks_share_a_file_and_leave_nothing_behind(ranks):
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


def test_a_file_lives_while_a_process_has_it_and_sizes_are_separate():
    key = b"size %d" % os.getpid()
    one, same, other = shared_file(key, size=10_000), shared_file(key, size=10_000), shared_file(key, size=20_000)
    one.map(10_000)[5:8] = b"abc"
    assert same.map(10_000)[5:8] == b"abc" and other.map(10_000)[5:8] == b"\0\0\0"
    one.close()
    again = shared_file(key, size=10_000)
    assert again.map(10_000)[5:8] == b"abc"
    same.close()
    again.close()
    fresh = shared_file(key, size=10_000)
    assert fresh.map(10_000)[5:8] == b"\0\0\0"
    fresh.close()
    other.close()


def test_an_announcement_of_another_file_is_ignored():
    import hashlib
    import socket

    key = b"liar %d" % os.getpid()
    name = f"hasten-{hashlib.sha256(key + (10_000).to_bytes(8, 'little')).hexdigest()[:32]}"
    with open("/dev/null", "rb") as file, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as liar:
        liar.bind(f"\0{name}/{os.getpid()}/{file.fileno()}")
        found = shared_file(key, size=10_000)
    assert os.fstat(found.descriptor).st_size == 10_000
    found.close()
