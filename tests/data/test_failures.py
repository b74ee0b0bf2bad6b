"""Samples that cannot be built, workers that die, and loops that are left early."""

import gc
import os
import signal
import sys
import threading
import time

import pytest
import torch
from samples import Drawing, Dying, Failing, Large, Nested, same
from torch.utils.data import DataLoader, Dataset

from hasten.data.loader import Loader
from hasten.data.workers.failures import describe_exit, name_sample, path_of, substitute
from hasten.errors import SampleRateError, WorkerDiedError


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [None, list], ids=["rows", "whole"])
def test_an_error_is_raised_at_its_batch_and_the_other_batches_follow(num_workers, collate_fn):
    batches = iter(Loader(Failing((9,)), 4, num_workers=num_workers, collate_fn=collate_fn))
    expected = list(DataLoader(Nested(), 4, collate_fn=collate_fn))
    assert same([next(batches), next(batches)], expected[:2])
    with pytest.raises(ValueError, match="9 is torn"):
        next(batches)
    assert same(list(batches), expected[3:])


def test_the_first_sample_may_raise():
    batches = iter(Loader(Failing((0,)), 4, num_workers=1))
    with pytest.raises(ValueError, match="0 is torn"):
        next(batches)
    assert same(list(batches), list(DataLoader(Nested(), 4))[1:])


def test_a_worker_names_the_sample_and_its_file():
    class Files(Failing):
        samples = [(f"photos/{number}.jpg", 0) for number in range(41)]

    with pytest.raises(ValueError, match=r"sample 9 \(photos/9\.jpg\)"):
        list(Loader(Files((9,)), 4, num_workers=1))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take notes since Python 3.11")
@pytest.mark.parametrize("collate_fn", [None, list], ids=["rows", "whole"])
def test_without_workers_a_note_on_the_exception_names_the_sample(collate_fn):
    with pytest.raises(ValueError, match="9 is torn") as raised:
        list(Loader(Failing((9,)), 4, collate_fn=collate_fn))
    assert str(raised.value) == "9 is torn"
    assert raised.value.__notes__ == ["while building sample 9"]


@pytest.mark.parametrize("collate_fn", [None, list], ids=["rows", "whole"])
def test_a_sample_is_replaced_by_one_of_its_batch_for_any_number_of_workers(collate_fn):
    found = []
    for num_workers in (0, 1, 2):
        torch.manual_seed(0)
        loader = Loader(
            Failing((0, 9, 40)),
            4,
            num_workers=num_workers,
            on_error="replace",
            collate_fn=collate_fn,
            max_error_rate=1.0,
            shuffle=True,
        )
        found.append(list(loader))
        assert loader.stats().num_replaced == 3
        assert sum(len(batch[1]) if collate_fn is None else len(batch) for batch in found[-1]) == 41
    assert same(found[0], found[1]) and same(found[0], found[2])
    numbers = {int(n) for batch in found[0] for n in (batch[1] if collate_fn is None else [s[1] for s in batch])}
    assert numbers.isdisjoint({0, 9, 40})


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [None, list], ids=["rows", "whole"])
def test_the_warning_about_a_replaced_sample_says_what_its_exception_said(collate_fn, num_workers):
    with pytest.warns(UserWarning, match=r"sample 9 could not be built.*ValueError\('9 is torn'\)"):
        list(Loader(Failing((9,)), 4, num_workers=num_workers, on_error="replace", collate_fn=collate_fn))


def test_a_large_sample_that_fails_is_raised_or_replaced():
    with pytest.raises(ValueError, match="9 is torn"):
        list(Loader(Large(Failing((9,))), 7, num_workers=1))
    batches = list(Loader(Large(Failing((9,))), 7, num_workers=1, on_error="replace"))
    numbers = [n for (_, n, *_), _ in batches for n in n.tolist()]
    assert len(numbers) == 41 and set(numbers) == set(range(41)) - {9}
    assert all(torch.equal(large[:, 0, 0], sample[1] / 3) for sample, large in batches)


def test_a_batch_without_another_sample_raises():
    with pytest.raises(ValueError, match="3 is torn"):
        list(Loader(Failing((3,)), 1, on_error="replace"))


def test_too_many_replaced_samples_are_an_error():
    with pytest.raises(SampleRateError, match=r"max_error_rate=0\.05"):
        list(Loader(Failing(tuple(range(0, 400, 4)), 400), 8, on_error="replace"))


@pytest.mark.parametrize("collate_fn", [None, list], ids=["rows", "whole"])
def test_a_killed_worker_is_reported_with_its_signal_and_its_sample(collate_fn):
    began = time.monotonic()
    with pytest.raises(WorkerDiedError, match=r"killed by signal: SIGKILL.*while building sample 17") as raised:
        list(Loader(Dying(17, signal.SIGKILL), 4, num_workers=2, collate_fn=collate_fn))
    assert isinstance(raised.value, RuntimeError) and "DataLoader worker (pid " in str(raised.value)
    assert time.monotonic() - began < 30  # not a hang


def test_a_worker_that_exits_is_reported_with_its_code():
    class Leaving(Nested):
        def __getitem__(self, index):
            if index == 5:
                os._exit(3)
            return super().__getitem__(index)

    with pytest.raises(WorkerDiedError, match="exited unexpectedly with code 3"):
        list(Loader(Leaving(), 4, num_workers=1))


def test_a_slow_batch_times_out():
    class Slow(Nested):
        def __getitem__(self, index):
            time.sleep(0.5)
            return super().__getitem__(index)

    with pytest.raises(RuntimeError, match="timed out after"):
        next(iter(Loader(Slow(), 1, num_workers=1, timeout=0.05)))


def test_an_empty_batch_raises_in_order_and_the_other_batches_follow():
    for num_workers in (0, 1):
        batches = iter(Loader(Nested(), batch_sampler=[[1], [], [2]], num_workers=num_workers))
        assert next(batches)[1].tolist() == [1]
        with pytest.raises(IndexError):
            next(batches)
        assert [batch[1].tolist() for batch in batches] == [[2]]


def test_a_slow_first_sample_does_not_delay_the_others():
    class SlowFirst(Nested):
        def __getitem__(self, index):
            if index == 0:
                time.sleep(1.5)
            return super().__getitem__(index)

    batches = iter(Loader(SlowFirst(), 1, num_workers=2, in_order=False))
    assert next(batches)[1].item() != 0
    assert 0 in [batch[1].item() for batch in batches]
    assert same(list(Loader(SlowFirst(12), 2, num_workers=2)), list(DataLoader(Nested(12), 2)))


def test_worker_init_fn_that_raises_is_raised():
    def fail(number):
        raise KeyError("not ready")

    with pytest.raises(KeyError, match="not ready"):
        list(Loader(Nested(), 4, num_workers=1, worker_init_fn=fail))


def test_a_batch_that_cannot_be_sent_raises():
    with pytest.raises(Exception, match="pickle"):
        list(Loader(Nested(), 4, num_workers=1, collate_fn=lambda samples: lambda: samples))


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_leaving_the_loop_releases_everything(persistent_workers):
    loader = Loader(Nested(400), 4, num_workers=2, persistent_workers=persistent_workers)
    for _ in loader:
        break
    for _ in range(2):
        batches = iter(loader)
        next(batches)
    del batches
    assert len(list(loader)) == 100


def test_an_exception_in_the_loop_releases_everything():
    with pytest.raises(ZeroDivisionError):
        for _ in Loader(Nested(), 4, num_workers=2):
            1 / 0  # noqa: B018


def test_persistent_workers_start_a_new_epoch():
    loader = Loader(Nested(), 4, num_workers=2, persistent_workers=True)
    expected = list(DataLoader(Nested(), 4))
    next(iter(loader))
    assert same(list(loader), expected) and same(list(loader), expected)


def test_two_loaders_may_be_read_alternately():
    one, other = Loader(Nested(), 4, num_workers=1), Loader(Nested(), 8, num_workers=1)
    pairs = list(zip(one, other))
    assert len(pairs) == 6 and pairs[0][0][1].tolist() == [0, 1, 2, 3]


def test_a_loader_may_be_used_within_a_worker():
    class Outer(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return torch.cat([batch[1] for batch in Loader(Nested(6), 4)]) + index

    assert torch.cat(list(Loader(Outer(), 3, num_workers=1))).tolist() == [list(range(k, k + 6)) for k in range(3)]


def test_threads_give_the_same_batches_as_processes_without_random_draws():
    loader = Loader(Nested(), 4, shuffle=True, num_workers=2, workers="threads", generator=torch.Generator())
    expected = list(Loader(Nested(), 4, shuffle=True, generator=torch.Generator()))
    assert same(list(loader), expected)
    next(iter(loader))
    del loader
    gc.collect()


def test_threads_do_not_change_the_training_loops_generators():
    torch.manual_seed(0)
    loader = Loader(Drawing(), 4, num_workers=2, workers="threads", generator=torch.Generator())
    batches = iter(loader)
    next(batches)
    for _ in batches:
        torch.manual_seed(5)
    assert len(list(loader)) == 11


def test_threads_exit_with_their_loop():
    loader = Loader(Nested(400), 4, num_workers=2, workers="threads")
    batches = iter(loader)
    next(batches)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("hasten")]
    del batches
    gc.collect()


def test_a_thread_that_outlives_its_loop_writes_to_no_later_batch(monkeypatch):
    monkeypatch.setattr("hasten.data.workers.threads.JOIN_SECONDS", 0.0)
    may_end, stuck = threading.Event(), threading.Event()

    class Stalling(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            if index == 13 and not stuck.is_set():
                stuck.set()
                may_end.wait(30)
                return torch.full((1000,), -1)
            return torch.full((1000,), index)

    loader = Loader(Stalling(), 4, num_workers=1, workers="threads", prefetch_factor=8)
    batches = iter(loader)
    next(batches)
    assert stuck.wait(30)
    del batches
    gc.collect()
    later = []
    for batch in loader:
        later.append(batch)
        if len(later) == 3:
            may_end.set()  # the thread of the loop before goes on with its sample now
            time.sleep(0.2)
    assert [batch[:, 0].tolist() for batch in later] == [list(range(k, k + 4)) for k in range(0, 64, 4)]


def test_a_sample_that_exits_ends_the_loop_and_not_its_thread_alone():
    class Exiting(Nested):
        def __getitem__(self, index):
            return sys.exit("enough") if index == 9 else super().__getitem__(index)

    with pytest.raises(SystemExit, match="enough"):
        list(Loader(Exiting(), 4, num_workers=2, workers="threads"))


def test_training_continues_where_no_more_threads_can_be_started(monkeypatch):
    def start(self):
        if self.name.startswith("hasten-worker") and self.name != "hasten-worker-0":
            raise RuntimeError("can't start new thread")
        started(self)

    started = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    batches = iter(Loader(Nested(), 4, num_workers=1, workers="threads"))
    with pytest.raises(RuntimeError):
        batches._pool.resize(3)
    assert batches._pool.num_workers == 1
    assert same(list(batches), list(DataLoader(Nested(), 4)))


def test_a_substitute_is_another_sample_of_the_same_batch():
    assert {substitute([1, 2, 3], 0, attempt, 5) for attempt in range(10)} == {2, 3}
    assert substitute([1], 0, 0, 5) is None
    assert substitute([1, 2], 0, 10, 5) is None


def test_a_path_is_found_through_subsets_and_concatenations():
    from torch.utils.data import ConcatDataset, Subset

    class Files(Nested):
        def __init__(self, name):
            super().__init__(5)
            self.paths = [f"{name}{number}" for number in range(5)]

    whole = Subset(ConcatDataset([Files("a"), Files("b")]), [7, 1])
    assert [path_of(whole, 0), path_of(whole, 1)] == ["b2", "a1"]
    assert name_sample(whole, 0) == "sample 0 (b2)" and name_sample(Nested(), 4) == "sample 4"
    assert path_of(Drawing(), 0) is None


def test_a_process_exit_is_described():
    assert describe_exit(7, -9).startswith("(pid 7) is killed by signal: SIGKILL (the system")
    assert describe_exit(7, 2) == "(pid(s) 7) exited unexpectedly with code 2"
