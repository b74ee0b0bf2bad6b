"""The machine over time: canned /proc texts, canned cgroups, and one tiny real process tree."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from hasten.cgroup import CgroupMemory
from hasten.measurement.system import resources
from hasten.measurement.system.box import BoxCounters, MemoryCounters, parse_cpu, parse_meminfo, within
from hasten.measurement.system.proctree import (
    ProcessCounters,
    ProcessTree,
    Rising,
    parse_io,
    parse_pss,
    parse_stat,
    parse_statm,
)
from hasten.measurement.system.resources import Reading, ResourceSampler, TreeCounters, TreeMeter, sample_between

STAT = "41 (a (b) c) S 7 41 41 0 -1 4194560 100 20 3 4 150 50 30 20 20 0 3 0 9999 1000 250 18446744073709551615"
MEMINFO = """MemTotal:       1000 kB
MemFree:         100 kB
MemAvailable:    600 kB
Buffers:          50 kB
Cached:          400 kB
Shmem:            30 kB
SwapTotal:       200 kB
SwapFree:        150 kB
"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def process(cpu, *, resident=0, shared=0, read=None):
    return ProcessCounters(
        1, 1, cpu, 10, 1, read_bytes=read, written_bytes=read, resident_bytes=resident, shared_bytes=shared
    )


def reading(at, *, tree, busy, stolen=None, throttled=None, own=0.0):
    return Reading(
        at=at,
        tree=TreeCounters(tree, 5, 0, None, None, 1000, 2),
        box=BoxCounters(busy, stolen, throttled, 5000, 700, 0),
        own_cpu=own,
    )


def test_a_process_name_may_hold_blanks_and_parentheses():
    found = parse_stat(STAT, ticks_per_second=100)
    assert (found.parent, found.started_ticks) == (7, 9999)


def test_a_process_that_ended_and_was_not_waited_for_is_not_alive():
    assert parse_stat(STAT, ticks_per_second=100).is_alive
    assert not parse_stat(STAT.replace(" S ", " Z "), ticks_per_second=100).is_alive


def test_what_exited_children_used_counts_for_the_tree():
    found = parse_stat(STAT, ticks_per_second=100)
    assert found.cpu_seconds == pytest.approx(2.5)
    assert (found.minor_faults, found.major_faults) == (120, 7)


def test_resident_and_shared_pages_become_bytes():
    assert parse_statm("500 100 40 1 0 60 0", page_bytes=4096) == (409600, 163840)


def test_the_proportional_set_size_is_read_in_bytes():
    rollup = "5581-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 1740 kB\nPss: 305 kB\nPss_Dirty: 9 kB\n"
    assert parse_pss(rollup) == 305 * 1024


def test_writes_that_never_reached_the_disk_are_not_counted():
    text = "rchar: 9\nwchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n"
    assert parse_io(text) == (4096, 4096)


def test_waiting_for_a_disk_is_not_busy_and_guests_count_once():
    busy, stolen = parse_cpu("cpu  100 10 50 900 80 5 5 20 60 0\ncpu0 1 1\n", ticks_per_second=10)
    assert (busy, stolen) == (17.0, 2.0)


def test_an_old_kernel_without_a_steal_column_still_reads():
    assert parse_cpu("cpu  100 10 50 900\n", ticks_per_second=10) == (16.0, 0.0)


def test_shared_memory_is_not_page_cache():
    assert parse_meminfo(MEMINFO) == MemoryCounters(600 * 1024, 420 * 1024, 50 * 1024)


def test_a_kernel_that_does_not_tell_what_is_available_gets_an_estimate():
    text = "\n".join(line for line in MEMINFO.splitlines() if "Available" not in line)
    assert parse_meminfo(text).available == 520 * 1024


def test_inside_a_cgroup_the_limit_decides_what_is_available():
    machine = MemoryCounters(10_000, 5_000, 0)
    assert within(machine, CgroupMemory(limit=4_000, available=1_000, page_cache=300)).available == 1_000
    assert within(machine, None) == machine


def test_a_counter_that_dips_and_comes_back_is_not_counted_twice():
    counter = Rising()
    assert [counter.feed(value) for value in (10, 14, 9, 15)] == [10, 14, 14, 15]


def test_a_counter_that_stays_low_goes_on_from_there():
    counter = Rising()
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
    meter = TreeMeter(tells_faults=True)
    tree = meter.add_up([process(1, resident=100, shared=40), process(1, resident=90, shared=40)], pss=None)
    assert tree.resident_bytes == 150


def test_resident_follows_private_pages_between_two_proportional_sizes():
    meter = TreeMeter(tells_faults=True)
    assert meter.add_up([process(1, resident=100, shared=40)], pss=80).resident_bytes == 80
    assert meter.add_up([process(1, resident=130, shared=40)], pss=None).resident_bytes == 110


def test_a_system_that_tells_no_faults_and_no_reads_gives_none():
    tree = TreeMeter(tells_faults=False).add_up([process(1)], pss=None)
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
