"""The number of workers, according to whether the workers or the loop wait."""

import time

import pytest
import torch
from samples import Nested, same
from torch.utils.data import DataLoader

from hasten.data.epoch.staffing import Interval, Reading, WorkerPlan, adjusted, usable_cores
from hasten.data.epoch.stats import Counts
from hasten.data.loader import Loader
from hasten.data.workers.processes import ProcessPool


def seen(*, waited=0.0, worked=1.0, cpu=1.0):
    return Interval(seconds=1.0, waited=waited, worked=worked, cpu_seconds=cpu)


def test_workers_are_added_up_to_the_cores_if_all_are_busy():
    assert adjusted(WorkerPlan(2, 2), seen(waited=0.5, worked=2.0, cpu=2.0), cores=8) == WorkerPlan(3, 2)
    assert adjusted(WorkerPlan(8, 2), seen(waited=0.5, worked=8.0, cpu=8.0), cores=8) == WorkerPlan(8, 2)


def test_workers_that_wait_for_a_disk_may_exceed_the_cores():
    assert adjusted(WorkerPlan(4, 2), seen(waited=0.5, worked=4.0, cpu=0.5), cores=2) == WorkerPlan(6, 2)
    assert adjusted(WorkerPlan(8, 2), seen(waited=0.5, worked=8.0, cpu=0.5), cores=2) == WorkerPlan(8, 2)


def test_excess_workers_stay_while_the_loop_waits():
    assert adjusted(WorkerPlan(6, 2), seen(waited=0.5, worked=6.0, cpu=6.0), cores=2) == WorkerPlan(6, 2)


def test_prefetching_increases_if_the_loop_waits_for_idle_workers():
    assert adjusted(WorkerPlan(4, 2), seen(waited=0.2, worked=2.0), cores=4) == WorkerPlan(4, 4)
    assert adjusted(WorkerPlan(4, 16), seen(waited=0.2, worked=2.0), cores=4) == WorkerPlan(4, 16)


def test_workers_are_removed_if_the_loop_never_waits():
    assert adjusted(WorkerPlan(8, 2), seen(waited=0.0, worked=1.5), cores=8) == WorkerPlan(2, 2)
    assert adjusted(WorkerPlan(1, 2), seen(waited=0.0, worked=0.01), cores=8) == WorkerPlan(1, 2)


def test_a_suitable_plan_is_not_changed():
    assert adjusted(WorkerPlan(3, 2), seen(waited=0.03, worked=2.5), cores=4) == WorkerPlan(3, 2)


def test_too_short_an_interval_is_ignored():
    counts = Counts()
    look = Reading.now(counts, 10.0)
    counts.num_batches, counts.wait_seconds, counts.sample_seconds, counts.cpu_seconds = 9, 0.5, 2.0, 1.5
    assert look.since(counts, 10.5) is None
    assert look.since(counts, 11.0) == Interval(1.0, 0.5, 2.0, 1.5)
    counts.num_batches = 3
    assert look.since(counts, 12.0) is None


def test_there_is_at_least_one_core():
    assert usable_cores() >= 1


class Sleeping(Nested):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_a_pool_grows_and_shrinks_mid_epoch(workers, monkeypatch):
    monkeypatch.setattr("hasten.data.epoch.staffing.CHECK_SECONDS", 0.1)
    monkeypatch.setattr("hasten.data.epoch.staffing.MIN_BATCHES", 2)
    loader = Loader(Sleeping(300), 4, num_workers="auto", workers=workers)
    batches, seen_workers = iter(loader), set()
    found = []
    for batch in batches:
        found.append(batch)
        seen_workers.add(batches._pool.num_workers)
        if len(found) > 40:
            time.sleep(0.05)
    assert max(seen_workers) > usable_cores() and len(seen_workers) > 2
    assert same(found, list(DataLoader(Nested(300), 4)))
    assert isinstance(loader.num_workers, int)


def test_no_samples_are_lost_when_workers_exit(monkeypatch):
    loader = Loader(Nested(400), 2, num_workers=3)
    batches = iter(loader)
    found = []
    for batch in batches:
        found.append(batch)
        batches._pool.resize(1 + len(found) % 3)
    assert torch.equal(torch.cat([batch[1] for batch in found]), torch.arange(400))


def test_workers_asked_to_exit_stay_if_a_new_epoch_starts():
    loader = Loader(Sleeping(200), 4, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    batches._pool.resize(1)
    assert same(list(loader), list(DataLoader(Nested(200), 4)))


def test_existing_workers_continue_if_no_more_can_be_started(monkeypatch):
    """Simulates `ulimit -u`, or too little memory for a fork."""

    refused = []

    def refuse(_self, number):
        refused.append(number)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("hasten.data.epoch.staffing.CHECK_SECONDS", 0.05)
    monkeypatch.setattr("hasten.data.epoch.staffing.MIN_BATCHES", 2)
    monkeypatch.setattr(
        "hasten.data.epoch.batches.adjusted", lambda plan, _seen, *, cores: WorkerPlan(4, plan.factor)
    )
    loader = Loader(Sleeping(300), 4, num_workers="auto")
    batches = iter(loader)
    taken = [next(batches)]
    monkeypatch.setattr(ProcessPool, "_start", refuse)
    taken += batches
    assert len(taken) == 75 and refused
