import errno
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

from hasten.loading.cache import counters as module
from hasten.loading.cache import ram_tier
from hasten.loading.cache.budget import Measured, forecast
from hasten.loading.cache.cache import Cache, open_cache
from hasten.loading.cache.counters import Counters
from hasten.loading.cache.disk_tier import DiskTier
from hasten.loading.cache.ram_tier import RamTier

posix = pytest.mark.skipif(sys.platform == "win32", reason="memory is shared through a descriptor")
forking = multiprocessing.get_context("fork") if sys.platform != "win32" else None


class Counted:
    """Sample i is an array that i determines; counts how often it is prepared."""

    keepable, draws_globally, threadable = True, False, True

    def __init__(self, size=10_000, fingerprint=b"counted"):
        self.size, self.fingerprint, self.prepared, self.identified = size, fingerprint, [], 0

    def prepare(self, index):
        self.prepared.append(index)
        return np.full(self.size, index, np.int64), index

    def identity(self, index):
        self.identified += 1
        return b"sample %d" % index


def label(value):
    assert (value[0] == value[1]).all()
    return value[1]


def epoch(cache, recipe, count=50, seed=0):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    assert [cache.get(index, recipe, use=label) for index in order] == order


@pytest.fixture(autouse=True)
def no_pressure(monkeypatch):
    monkeypatch.setattr(ram_tier, "available_memory", lambda: 1 << 50)


@pytest.fixture
def made(tmp_path):
    caches = []

    def make(recipe, *, ram=0, disk=0, known=None, **more):
        cache = open_cache(
            recipe,
            num_samples=50,
            ram_bytes=ram,
            disk_bytes=disk,
            folder=tmp_path / "samples",
            forecast=known,
            **more,
        )
        caches.append(cache)
        return cache

    yield make
    for cache in caches:
        cache.close()


@posix
def test_nothing_is_prepared_twice_where_all_fit(made):
    recipe = Counted()
    cache = made(recipe, ram=16 << 20)
    for seed in range(3):
        epoch(cache, recipe, seed=seed)
    assert sorted(recipe.prepared) == list(range(50))
    counts = cache.counts()
    assert (counts.num_misses, counts.tiers[0].num_hits, counts.tiers[0].num_fills) == (50, 100, 50)
    assert counts.hit_rate == pytest.approx(2 / 3)
    assert counts.tiers[0].seconds_saved == pytest.approx(2 * counts.seconds_preparing)


@posix
def test_a_cache_of_half_the_data_saves_half_the_work(made):
    recipe = Counted()
    cache = made(recipe, ram=2 << 20)
    epoch(cache, recipe)
    held = cache.counts().tiers[0].num_fills
    assert 22 <= held <= 27
    recipe.prepared.clear()
    epoch(cache, recipe, seed=1)
    assert len(recipe.prepared) == 50 - held


@posix
def test_disk_takes_what_memory_does_not_and_each_is_kept_once(made):
    recipe = Counted()
    cache = made(recipe, ram=2 << 20, disk=64 << 20)
    epoch(cache, recipe)
    recipe.prepared.clear()
    epoch(cache, recipe, seed=1)
    ram, disk = cache.counts().tiers
    assert recipe.prepared == [] and ram.num_fills + disk.num_fills == 50 == ram.num_hits + disk.num_hits


@posix
def test_a_disk_that_has_room_for_all_gets_all_and_fills_memory_in_the_next_run(made):
    recipe = Counted()
    known = forecast([Measured(80_000, 0.01)], num_samples=50, budgets=[("ram", 2 << 20), ("disk", 64 << 20)])
    cache = made(recipe, ram=2 << 20, disk=64 << 20, known=known)
    epoch(cache, recipe)
    assert cache.counts().tiers[1].num_fills == 50
    recipe.prepared.clear()
    again = made(recipe, ram=2 << 20, disk=64 << 20, known=known)
    epoch(again, recipe)
    ram, disk = again.counts().tiers
    assert recipe.prepared == [] and disk.num_hits == 50 and ram.num_fills > 20
    epoch(again, recipe)
    assert again.counts().tiers[0].num_hits == ram.num_fills


@posix
def test_what_use_writes_to_a_value_is_not_kept(made):
    recipe = Counted()
    known = forecast([Measured(80_000, 0.01)], num_samples=50, budgets=[("disk", 64 << 20)])

    def spoil(value):
        value[0][:] = -1

    for ram in (0, 4 << 20):
        cache = made(recipe, ram=ram, disk=64 << 20, known=known)
        cache.get(3, recipe, use=spoil)
        assert cache.get(3, recipe, use=label) == 3
    assert len(recipe.prepared) == 1


@posix
def test_another_fingerprint_is_another_sample_even_before_the_cache_is_cleared(made):
    old, new = Counted(), Counted(fingerprint=b"new")
    cache = made(old, ram=16 << 20, disk=64 << 20)
    epoch(cache, old)
    assert cache.get(7, new, use=label) == 7 and new.prepared == [7]
    cache.clear()
    epoch(cache, new)
    assert sorted(new.prepared) == list(range(50))


@posix
def test_the_worthiest_get_the_room_and_later_anyone(made):
    recipe = Counted()
    weights = [1.0] * 30 + [9.0] * 20
    known = forecast([Measured(80_000, 0.01)], num_samples=50, budgets=[("ram", 1 << 20)], weights=weights)
    cache = made(recipe, ram=1 << 20, known=known, weights=weights)
    for index in [*range(30), 48, 49]:
        cache.get(index, recipe, use=label)
    assert cache.counts().tiers[0].num_fills == 2
    for index in range(30):
        cache.get(index, recipe, use=label)
    assert 10 < cache.counts().tiers[0].num_fills < 14
    recipe.prepared.clear()
    for index in (48, 49, 20):
        cache.get(index, recipe, use=label)
    assert recipe.prepared == []


@posix
def test_what_cannot_be_pickled_is_prepared_each_time_and_given_to_use(made):
    class Odd(Counted):
        def prepare(self, index):
            self.prepared.append(index)
            return lambda: index

    recipe = Odd()
    cache = made(recipe, ram=1 << 20)
    assert [cache.get(3, recipe, use=lambda value: value()) for _ in range(2)] == [3, 3]
    assert recipe.prepared == [3, 3] and cache.counts().tiers[0].num_fills == 0


@posix
def test_what_the_recipe_and_use_raise_is_passed_on(made):
    class Broken(Counted):
        def prepare(self, index):
            raise FileNotFoundError("gone")

    recipe = Broken()
    cache = made(recipe, ram=1 << 20)
    with pytest.raises(FileNotFoundError, match="gone"):
        cache.get(0, recipe, use=label)
    with pytest.raises(ZeroDivisionError):
        cache.get(0, Counted(), use=lambda value: 1 // 0)


@posix
def test_memory_given_back_while_a_value_is_used_means_to_prepare_it_and_use_it_anew(made, monkeypatch):
    recipe = Counted()
    cache = made(recipe, ram=16 << 20)
    epoch(cache, recipe)
    monkeypatch.setattr(ram_tier, "available_memory", lambda: 0)
    monkeypatch.setattr(ram_tier, "spare_memory", lambda: 1 << 30)
    seen = []

    def use(value):
        cache.relieve()
        seen.append(int(value[0].sum()))
        return seen[-1]

    assert cache.get(9, recipe, use=use) == 9 * recipe.size
    assert len(seen) == 2


def test_a_disk_that_fails_is_given_up_with_one_warning(made, monkeypatch):
    recipe = Counted()
    cache = made(recipe, disk=64 << 20)
    epoch(cache, recipe, count=5)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="disk tier takes no more samples; the run goes on without: .*No space"):
        epoch(cache, recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epoch(cache, recipe)
    assert cache.counts().tiers[0].num_fills == 5 and cache.counts().tiers[0].num_hits == 10


def test_a_disk_that_cannot_be_written_is_still_read(made, monkeypatch):
    recipe = Counted()
    epoch(made(recipe, disk=64 << 20), recipe, count=5)
    real = os.open

    def read_only(path, flags, *mode):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", read_only)
    cache = made(recipe, disk=64 << 20)
    with pytest.warns(UserWarning, match="takes no more samples.*cannot be written"):
        epoch(cache, recipe)
    assert (cache.counts().tiers[0].num_hits, cache.counts().num_misses) == (5, 45)


@posix
def test_a_place_that_cannot_be_had_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    recipe = Counted()
    with pytest.warns(UserWarning) as warned:
        cache = open_cache(
            recipe, num_samples=50, ram_bytes=100, disk_bytes=1 << 20, folder=tmp_path / "file" / "samples"
        )
    assert [str(one.message)[:24] for one in warned] == ["no samples are kept in m", "no samples are kept on d"]
    epoch(cache, recipe)
    epoch(cache, recipe)
    assert cache.counts().num_misses == 100
    cache.close()


@posix
def test_forked_workers_share_one_copy_and_are_counted_together(made):
    recipe = Counted()
    cache = made(recipe, ram=16 << 20)

    def work(number):
        for index in range(number, 50, 4):
            cache.get(index, recipe, use=label)

    for _ in range(2):
        workers = [forking.Process(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
    counts = cache.counts()
    assert (counts.num_misses, counts.tiers[0].num_hits) == (50, 50)
    epoch(cache, recipe)
    assert recipe.prepared == []


SPAWNED = """
import multiprocessing, sys
import numpy as np
from pathlib import Path
from hasten.loading.cache.cache import open_cache

class Plain:
    fingerprint = b"plain"
    def prepare(self, index):
        return np.full(20_000, index), index
    def identity(self, index):
        return b"%d" % index

def check(value):
    assert (value[0] == value[1]).all()
    return value[1]

def work(cache):
    for index in range(40):
        assert cache.get(index, Plain(), use=check) == index

if __name__ == "__main__":
    cache = open_cache(Plain(), num_samples=40, ram_bytes=4 << 20, disk_bytes=64 << 20, folder=Path(sys.argv[1]))
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(cache,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    work(cache)
    counts = cache.counts()
    print(counts.num_misses, [tier.num_hits > 0 for tier in counts.tiers], sum(tier.num_hits for tier in counts.tiers))
"""


@posix
def test_a_spawned_worker_shares_the_one_copy_and_is_counted_too(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path / "samples")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.stderr) == ("40 [True, True] 40", "")


def test_threads_share_a_cache(made):
    recipe = Counted()
    cache = made(recipe, ram=16 << 20, disk=64 << 20)
    failed = []

    def work(seed):
        try:
            for again in range(3):
                epoch(cache, recipe, seed=seed + again)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    counts = cache.counts()
    assert counts.num_misses + sum(tier.num_hits for tier in counts.tiers) == 6 * 3 * 50
    assert counts.num_misses == len(recipe.prepared)


@posix
def test_counters_keep_what_dead_processes_counted_and_use_their_rows_again(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 4)
    counters = Counters(["a", "b"])

    def count():
        counters.add(a=1, b=0.5)
        os._exit(0)

    for _ in range(12):
        if not (process := os.fork()):
            count()
        os.waitpid(process, 0)
    counters.add(a=1)
    assert (counters.total("a"), counters.total("b")) == (13, 6)
    counters.close()
    assert counters.total("a") == 13


@posix
def test_a_cache_leaves_no_descriptor_open(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("nothing to count them by")

    def one():
        recipe = Counted()
        tiers = [RamTier(4 << 20, num_samples=50), DiskTier(4 << 20, fingerprint=b"x", root=tmp_path / "samples")]
        cache = Cache(tiers)
        epoch(cache, recipe)
        cache.close()

    one()
    before = os.listdir("/proc/self/fd")
    one()
    assert len(os.listdir("/proc/self/fd")) == len(before)


@posix
def test_nothing_is_packed_for_a_tier_that_is_full(made, monkeypatch):
    recipe = Counted()
    cache = made(recipe, ram=1 << 20)
    epoch(cache, recipe)
    kept = 50 - cache.counts().num_misses + cache.counts().tiers[0].num_fills
    assert 0 < kept < 50

    def refuse(value):
        raise AssertionError("a value was packed that finds no room")

    monkeypatch.setattr("hasten.loading.cache.cache.pack", refuse)
    epoch(cache, recipe, seed=1)
    assert cache.counts().tiers[0].num_hits == cache.counts().tiers[0].num_fills


def test_no_chain_of_tiers_keeps_nothing_and_prepares_all():
    recipe, cache = Counted(), Cache([])
    epoch(cache, recipe)
    assert cache.counts().num_misses == 50
    cache.close()


@posix
def test_a_file_that_changed_is_a_miss_in_memory_too(made):
    class Files(Counted):
        version = 1

        def identity(self, index):
            return b"sample %d of version %d" % (index, self.version)

    recipe = Files()
    cache = made(recipe, ram=1 << 26)
    epoch(cache, recipe)
    epoch(cache, recipe, seed=1)
    assert cache.counts().num_misses == 50
    recipe.version = 2
    epoch(cache, recipe, seed=2)
    assert cache.counts().num_misses == 100


def test_what_draws_after_all_is_not_kept(made):
    class Seldom(Counted):
        def prepare(self, index):
            if index == 7:
                random.random()
            return super().prepare(index)

    recipe = Seldom()
    cache = made(recipe, ram=1 << 26)
    epoch(cache, recipe)
    epoch(cache, recipe, seed=1)
    assert recipe.prepared.count(7) == 2 and len(recipe.prepared) == 51
