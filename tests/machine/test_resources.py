"""The machine over time: counters of tiny process trees, and the rates that two readings make."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from hasten.cgroup import CgroupMemory
from hasten.machine import resources
from hasten.machine.processes import ProcessCounters, ProcessTree, RisingCounter, parse_faults
from hasten.machine.resources import (
    BoxCounters,
    Reading,
    ResourceSampler,
    TreeCounters,
    TreeMeter,
    busy_of,
    read_box,
    sample_between,
)

STAT = "41 (a (b) c) S 7 41 41 0 -1 4194560 100 20 3 4 150 50 30 20 20 0 3 0 9999 1000 250 18446744073709551615"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def process(cpu, *, resident=0, shared=0, read=None):
    return ProcessCounters(cpu, read_bytes=read, written_bytes=read, resident_bytes=resident, shared_bytes=shared)


def reading(at, *, tree, busy, stolen=None, throttled=None, own=0.0):
    return Reading(
        at=at,
        tree=TreeCounters(tree, 5, 0, None, None, 1000, 2),
        box=BoxCounters(busy, stolen, throttled, 5000, 700, 0),
        own_cpu=own,
    )


def test_a_process_name_may_hold_blanks_and_parentheses_and_exited_children_count():
    assert parse_faults(STAT) == (120, 7)


@on_linux
def test_a_process_that_ended_and_was_not_waited_for_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()
    tree = ProcessTree(child.pid)
    while tree.read()[child.pid].is_alive:
        time.sleep(0.001)
    child.wait()


@on_linux
def test_what_exited_children_used_counts_for_the_tree():
    work = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.2: pass"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}]); print(flush=True); input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    parent.stdout.readline()
    found = ProcessTree(parent.pid).read()[parent.pid]
    parent.communicate("\n")
    assert found.cpu_seconds >= 0.2 and found.minor_faults > 0 and found.resident_bytes > found.shared_bytes > 0


def test_waiting_for_a_disk_is_not_busy():
    times = SimpleNamespace(user=10.0, nice=1.0, system=5.0, idle=90.0, iowait=8.0, irq=0.5, softirq=0.5, steal=2.0)
    assert busy_of(times) == 17.0


def test_inside_a_control_group_the_limit_decides_what_is_available(monkeypatch):
    limit = CgroupMemory(limit=4_000, available=1_000, page_cache=300)
    monkeypatch.setattr(resources, "read_memory", lambda group: limit)
    assert read_box(None, None).available_bytes == 1_000
    monkeypatch.setattr(resources, "read_memory", lambda group: None)
    assert read_box(None, None).available_bytes > 1_000


def test_a_counter_that_dips_and_comes_back_is_not_counted_twice():
    counter = RisingCounter()
    assert [counter.feed(value) for value in (10, 14, 9, 15)] == [10, 14, 14, 15]


def test_a_counter_that_stays_low_goes_on_from_there():
    counter = RisingCounter()
    assert [counter.feed(value) for value in (10, 14, 4, 5, 7)] == [10, 14, 14, 14, 16]


def test_rates_are_means_since_the_sample_before():
    before = reading(1.0, tree=2.0, busy=10.0, stolen=0.0, throttled=0.0, own=0.0)
    now = reading(3.0, tree=5.0, busy=15.0, stolen=0.5, throttled=1.0, own=0.2)
    sample = sample_between(before, now)
    assert (sample.tree_cpu, sample.machine_cpu) == (1.5, 2.5)
    assert sample.others_cpu == pytest.approx(0.9)  # without hasten's own
    assert (sample.stolen_cpu, sample.throttled_cpu) == (0.75, 0.5)


def test_unknown_stealing_is_not_zero_stealing():
    sample = sample_between(reading(0, tree=0, busy=0), reading(1, tree=1, busy=1))
    assert sample.stolen_cpu is None
    assert sample.throttled_cpu is None


def test_others_never_use_less_than_nothing():
    sample = sample_between(reading(0, tree=0, busy=0), reading(1, tree=1.1, busy=1))
    assert sample.others_cpu == 0.0


def test_no_time_between_two_readings_makes_no_sample():
    assert sample_between(reading(1, tree=0, busy=0), reading(1, tree=1, busy=1)) is None


def test_shared_pages_count_once_before_the_proportional_size_is_known():
    meter = TreeMeter()
    tree = meter.add_up([process(1, resident=100, shared=40), process(1, resident=90, shared=40)], pss=None)
    assert tree.resident_bytes == 150


def test_resident_follows_private_pages_between_two_proportional_sizes():
    meter = TreeMeter()
    assert meter.add_up([process(1, resident=100, shared=40)], pss=80).resident_bytes == 80
    assert meter.add_up([process(1, resident=130, shared=40)], pss=None).resident_bytes == 110


def test_a_system_that_tells_no_faults_and_no_reads_gives_none():
    tree = TreeMeter().add_up([process(1)], pss=None)
    assert (tree.minor_faults, tree.major_faults, tree.read_bytes) == (None, None, None)


def test_a_tree_of_a_process_that_is_gone_is_empty():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert ProcessTree(child.pid).read() == {}


@on_linux
def test_an_orphan_is_still_seen():
    script = (
        "import subprocess as s\n"
        "print(s.Popen(['sleep', '60'], start_new_session=True, stdout=s.DEVNULL).pid, flush=True)\n"
        "input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    orphan = int(parent.stdout.readline())
    tree = ProcessTree(parent.pid)
    try:
        assert set(tree.read()) >= {parent.pid, orphan}
        parent.communicate("\n")
        assert set(tree.read()) == {orphan}
        assert orphan in {pid for pid, _ in tree.seen}
    finally:
        subprocess.run(["kill", str(orphan)], check=True)


def test_the_sampler_sees_its_process_and_says_what_it_cost():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sampler = ResourceSampler(child.pid, clock=time.monotonic, interval=0.01)
    with sampler:
        while not sampler.samples and sampler.failure is None:
            time.sleep(0.01)
    child.communicate(b"\n")
    assert sampler.failure is None
    assert sampler.samples[0].num_processes >= 1
    assert sampler.cpu_seconds > 0
    assert child.pid in {pid for pid, _ in sampler.seen}


@on_linux
@pytest.mark.parametrize("share", [1e9, 1e-9], ids=["read at once", "told from what was read"])
def test_memory_is_right_where_processes_came_or_went(share, monkeypatch):
    monkeypatch.setattr(resources, "PSS_MOST_SHARE", share)
    script = (
        "import os, signal, sys\n"
        "held = bytearray(b'1') * (300 << 20)\n"
        "for line in sys.stdin:\n"
        "    if line == 'fork\\n':\n"
        "        children = [os.fork() or signal.pause() for _ in range(2)]\n"
        "    else:\n"
        "        [(os.kill(child, 9), os.waitpid(child, 0)) for child in children]\n"
        "    print(flush=True)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    sampler = ResourceSampler(parent.pid, clock=time.monotonic)

    def sample_after(line):
        parent.stdin.write(line)
        parent.stdin.flush()
        parent.stdout.readline()
        sampler.take()

    try:
        for line in ("fork\n", "kill\n", "fork\n"):
            sample_after(line)
        told = [round(sample.resident_bytes / 2**20, -2) for sample in sampler.samples]
        assert told == [300, 300]
    finally:
        for pid, _ in sampler.seen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.communicate()


def test_the_sampler_outlives_the_process_it_samples():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with ResourceSampler(child.pid, clock=time.monotonic, interval=0.01) as sampler:
        sampler.take()
    assert (sampler.samples, sampler.failure) == ([], None)


@on_linux
def test_a_process_that_is_only_waited_for_makes_no_sample():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()  # until it ends
    sampler = ResourceSampler(child.pid, clock=time.monotonic)
    while any(one.is_alive for one in ProcessTree(child.pid).read().values()):
        time.sleep(0.001)
    sampler.take()
    sampler.take()
    child.wait()
    assert sampler.samples == []


def test_a_sampler_that_fails_stands_aside_and_says_why(monkeypatch):
    sampler = ResourceSampler(1, clock=time.monotonic)
    monkeypatch.setattr(sampler, "take", lambda: 1 / 0)
    with sampler:
        pass
    assert sampler.failure == "ZeroDivisionError: division by zero"
