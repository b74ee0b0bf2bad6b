"""Threads where they are safe and leave the interpreter's lock free."""

import time

import pytest
from samples import Nested

from hasten.data.epoch.state import LoaderState
from hasten.data.loader import Loader
from hasten.data.memo.folders import FolderSamples
from hasten.data.workers.threads import held_share


def spin():
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until:
        pass


def test_work_that_holds_the_lock_is_told_from_work_that_waits():
    shares = [(held_share(spin), held_share(lambda: time.sleep(0.002))) for _ in range(3)]
    assert sum(held > waits for held, waits in shares) >= 2


class Folders(FolderSamples):
    def sample(self, index, generator):
        return self.dataset[index]


@pytest.mark.parametrize(
    "share, arguments, threads",
    [
        (0.1, {}, True),
        (0.4, {}, False),
        (0.1, {"workers": "processes"}, False),
        (0.9, {"workers": "threads"}, True),
        (0.1, {"worker_init_fn": print}, False),
        (0.1, {"multiprocessing_context": "fork"}, False),
        (0.1, {"collate_fn": list}, False),
    ],
    ids=str,
)
def test_threads_are_taken_where_they_are_safe_and_pay(monkeypatch, share, arguments, threads):
    monkeypatch.setattr("hasten.data.epoch.state.held_share", lambda work: share)
    monkeypatch.setattr("hasten.data.epoch.state.folder_samples", Folders)
    monkeypatch.setattr("hasten.data.epoch.state.is_threadable", lambda dataset: True)
    assert uses_threads(Loader(Nested(), 4, num_workers=2, **arguments)) is threads


def test_a_dataset_of_which_nothing_is_known_gets_processes(monkeypatch):
    monkeypatch.setattr("hasten.data.epoch.state.held_share", lambda work: 0.0)
    assert uses_threads(Loader(Nested(), 4, num_workers=2)) is False


def uses_threads(loader):
    state = LoaderState()
    state.prepare(loader, loader._options())
    return state.uses_threads
