"""Threads where they are safe and leave the interpreter's lock free."""

import time

import pytest
from samples import Nested

from hasten.loading.crew.gil import held_share
from hasten.loading.loader import Loader
from hasten.loading.recipe import Plain
from hasten.loading.resources import renew


def spin():
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until:
        pass


def test_work_that_holds_the_lock_is_told_from_work_that_waits():
    shares = [(held_share(spin), held_share(lambda: time.sleep(0.002))) for _ in range(3)]
    assert sum(held > waits for held, waits in shares) >= 2


class Safe(Plain):
    threadable = True
    draws_globally = False


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
    monkeypatch.setattr("hasten.loading.resources.held_share", lambda work: share)
    monkeypatch.setattr("hasten.loading.resources.Finder.find", lambda finder: Safe(finder._dataset))
    loader = Loader(Nested(), 4, num_workers=2, **arguments)
    assert renew(loader, loader._settings(), None).uses_threads is threads


def test_a_dataset_of_which_nothing_is_known_gets_processes(monkeypatch):
    monkeypatch.setattr("hasten.loading.resources.held_share", lambda work: 0.0)
    loader = Loader(Nested(), 4, num_workers=2)
    assert renew(loader, loader._settings(), None).uses_threads is False
