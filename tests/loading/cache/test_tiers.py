import errno
import gc
import multiprocessing
import os
import random
import resource
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from hasten.loading.cache import ledger, ram_tier
from hasten.loading.cache.disk_tier import DiskTier, samples_folder
from hasten.loading.cache.ram_tier import RamTier
from hasten.loading.cache.tiers import MISSING
from hasten.loading.memory.packing import pack

linux = pytest.mark.skipif(sys.platform != "linux", reason="memfd, SIGKILL and record locks as Linux has them")
forking = multiprocessing.get_context("fork")


class Numbered:
    """Sample i is an image that i determines, and i."""

    keepable, draws_globally, threadable = True, False, True

    def __init__(self, size=100_000, fingerprint=b"numbered"):
        self.size, self.fingerprint = size, fingerprint

    def prepare(self, index):
        rng = np.random.default_rng(index)
        size = self.size + int(rng.integers(0, 5000))
        return {
            "image": torch.from_numpy(rng.integers(0, 256, size, np.uint8)),
            "mean": rng.random(3),
            "label": index,
        }

    def identity(self, index):
        return b"sample %d" % index

    def assert_is(self, index, value):
        expected = self.prepare(index)
        assert value["label"] == index
        # By numpy: torch's threads do not outlive a fork.
        assert np.array_equal(value["image"].numpy(), expected["image"].numpy())
        assert np.array_equal(value["mean"], expected["mean"])


def put(tier, index, recipe, seconds=0.5):
    return tier.put(tier.key(index, recipe), pack(recipe.prepare(index)), seconds)


def is_held(tier, index, recipe):
    """Whether the tier has the sample; if so, it is verified."""
    return tier.get(tier.key(index, recipe), lambda value, _: recipe.assert_is(index, value)) is None


def num_held(tier, count, recipe):
    return sum(is_held(tier, index, recipe) for index in range(count))


def run(*bodies, kill_after=None):
    """Run functions in forked processes at once; return their exit codes."""
    processes = [forking.Process(target=body) for body in bodies]
    for process in processes:
        process.start()
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(processes[0].pid, signal.SIGKILL)
    for process in processes:
        process.join(60)
        assert process.exitcode is not None, "hangs"
    return [process.exitcode for process in processes]


@pytest.fixture
def no_pressure(monkeypatch):
    monkeypatch.setattr(ram_tier, "available_memory", lambda: 1 << 50)


@pytest.fixture(params=["ram", "disk"])
def tier(request, tmp_path, no_pressure):
    if request.param == "ram":
        made = RamTier(32 << 20, num_samples=1000)
    else:
        made = DiskTier(32 << 20, fingerprint=b"numbered", root=tmp_path / "samples")
    yield made
    made.close()


@pytest.mark.parametrize("size", [100, 100_000])
def test_what_was_put_in_is_got_out_with_what_it_cost(tier, size):
    recipe = Numbered(size)
    assert not is_held(tier, 3, recipe)
    assert put(tier, 3, recipe, seconds=0.25)
    assert is_held(tier, 3, recipe) and not is_held(tier, 4, recipe)
    assert tier.get(tier.key(3, recipe), lambda _, opened: opened.seconds) == 0.25


def test_another_recipes_values_are_not_served(tier):
    assert put(tier, 3, Numbered())
    other = Numbered(fingerprint=b"other")
    assert tier.get(tier.key(3, other), lambda value, _: value) is MISSING


def test_what_is_in_stays_as_it_is(tier):
    recipe = Numbered()
    assert put(tier, 3, recipe) and not put(tier, 3, recipe)
    before = tier.num_bytes
    assert not put(tier, 3, recipe) and tier.num_bytes == before


def test_a_full_tier_takes_nothing_more_and_keeps_what_it_has(tier, tmp_path):
    recipe = Numbered()
    filled = [index for index in range(400) if put(tier, index, recipe)]
    assert 250 < len(filled) < 340
    assert filled == list(range(len(filled)))  # nothing was evicted for what came later
    assert num_held(tier, 400, recipe) == len(filled)
    assert tier.num_bytes <= tier.budget
    on_disk = sum(path.lstat().st_blocks * 512 for path in [tmp_path / "samples", *(tmp_path / "samples").rglob("*")]
                  if path.exists())  # fmt: skip
    assert on_disk <= tier.budget


def test_what_is_too_large_is_passed_by_and_smaller_ones_still_fit(tier):
    assert not put(tier, 0, Numbered(40 << 20))
    assert put(tier, 1, Numbered(1000))


@linux
def test_many_processes_fill_at_once_and_every_value_is_right(tier):
    recipe = Numbered(60_000)

    def work():
        order = list(range(150))
        random.Random(os.getpid()).shuffle(order)
        for index in order:
            if not is_held(tier, index, recipe):
                put(tier, index, recipe)

    assert run(*[work] * 6) == [0] * 6
    assert num_held(tier, 150, recipe) >= 140  # where two filled the same at once, one of the places is lost
    assert tier.num_bytes <= tier.budget


@linux
def test_many_processes_never_exceed_a_budget_that_is_too_small(tier):
    recipe = Numbered(200_000)

    def work():
        for index in range(os.getpid() % 7, 400):
            put(tier, index, recipe)
            assert tier.num_bytes <= tier.budget

    assert run(*[work] * 4) == [0] * 4
    assert 50 < num_held(tier, 400, recipe) < 170


@linux
def test_killed_processes_neither_bar_the_others_nor_leave_half_a_value(tier):
    recipe = Numbered(30_000)

    def victim():
        for index in range(1000):
            put(tier, index, recipe)

    for attempt in range(12):
        codes = run(victim, lambda attempt=attempt: put(tier, 999 - attempt, recipe), kill_after=0.003 * attempt)
        assert codes[1] == 0
    held = num_held(tier, 1000, recipe)
    assert held >= 12
    assert tier.num_bytes <= tier.budget
    assert put(tier, 900, recipe) and is_held(tier, 900, recipe)


@linux
def test_a_process_that_is_stopped_in_its_turn_hangs_nobody(tier):
    descriptor = (tier._file.descriptor if isinstance(tier, RamTier) else tier._ledger._descriptor)  # fmt: skip
    taken = forking.Event()

    def hold():
        from hasten.loading.memory.turns import turn

        with turn(descriptor) as ours:
            assert ours
            taken.set()
            signal.pause()

    holder = forking.Process(target=hold)
    holder.start()
    assert taken.wait(30)
    assert not put(tier, 1, Numbered())
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert put(tier, 1, Numbered())


@linux
def test_nothing_is_left_open_after_close(tmp_path, no_pressure):
    def one():
        recipe = Numbered()
        tiers = [RamTier(8 << 20, num_samples=50), DiskTier(8 << 20, fingerprint=b"x", root=tmp_path / "samples")]
        for tier in tiers:
            put(tier, 1, recipe)
            assert is_held(tier, 1, recipe)
            tier.close()

    one()
    gc.collect()
    before, maps = len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("hasten")
    one()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/maps").read_text().count("hasten") == maps == 0


class TestMemory:
    """What only the tier in memory has to stand."""

    pytestmark = [linux, pytest.mark.usefixtures("no_pressure")]

    def test_what_is_written_to_a_value_is_undone(self):
        tier, recipe = RamTier(8 << 20, num_samples=10), Numbered()
        put(tier, 1, recipe)

        def spoil(value, _):
            value["mean"][0] = 2
            value["image"].zero_()
            return int(value["image"].numpy().sum())

        assert tier.get(tier.key(1, recipe), spoil) == 0
        assert is_held(tier, 1, recipe)

    def test_memory_given_back_is_a_miss_and_is_really_given_back(self, monkeypatch):
        tier, recipe = RamTier(64 << 20, num_samples=100), Numbered(1 << 20)
        for index in range(40):
            assert put(tier, index, recipe)
        before = tier.num_bytes
        monkeypatch.setattr(ram_tier, "spare_memory", lambda: 21 << 20)
        monkeypatch.setattr(ram_tier, "available_memory", lambda: 1 << 20)
        assert 20 << 20 <= tier.relieve() <= 24 << 20
        assert tier.num_bytes <= before - (20 << 20)
        assert 15 <= num_held(tier, 100, recipe) <= 20
        assert not put(tier, 50, recipe)
        assert tier.num_bytes <= before - (20 << 20)  # to look for what is gone has not brought its pages back

    def test_a_value_given_back_while_it_is_used_does_not_count(self, monkeypatch):
        tier, recipe = RamTier(8 << 20, num_samples=10), Numbered()
        put(tier, 1, recipe)
        monkeypatch.setattr(ram_tier, "spare_memory", lambda: 1 << 40)
        monkeypatch.setattr(ram_tier, "available_memory", lambda: 0)

        def lose(value, _):
            tier.relieve()
            return int(value["image"].numpy().sum())

        def lose_and_fail(value, _):
            tier.clear()
            put(tier, 1, recipe)
            tier.relieve()
            raise KeyError("made of zeros")

        assert tier.get(tier.key(1, recipe), lose) is MISSING
        tier.clear()
        put(tier, 1, recipe)
        assert tier.get(tier.key(1, recipe), lose_and_fail) is MISSING

    def test_what_use_raises_is_passed_on(self):
        tier, recipe = RamTier(8 << 20, num_samples=10), Numbered()
        put(tier, 1, recipe)
        with pytest.raises(ZeroDivisionError):
            tier.get(tier.key(1, recipe), lambda *_: 1 // 0)

    def test_where_no_room_for_private_copies_is_promised_values_are_copied(self, monkeypatch):
        import mmap

        def strict(*arguments, access=None, **more):
            if access == mmap.ACCESS_COPY:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return real(*arguments, **more, **({} if access is None else {"access": access}))

        real = mmap.mmap
        monkeypatch.setattr(mmap, "mmap", strict)
        tier, recipe = RamTier(8 << 20, num_samples=10), Numbered()
        put(tier, 1, recipe)
        assert tier.get(tier.key(1, recipe), lambda value, _: value["image"].zero_().numpy().sum()) == 0
        assert is_held(tier, 1, recipe)

    def test_a_tier_that_is_let_go_gives_its_memory_back(self):
        before = len(os.listdir("/proc/self/fd"))
        tier, recipe = RamTier(8 << 20, num_samples=10), Numbered()
        put(tier, 1, recipe)
        assert is_held(tier, 1, recipe)
        del tier
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_memory_is_looked_at_while_it_is_filled(self, monkeypatch):
        monkeypatch.setattr(ram_tier, "LOOK_EVERY", 1 << 20)
        monkeypatch.setattr(ram_tier, "spare_memory", lambda: 1 << 20)
        tier, recipe = RamTier(32 << 20, num_samples=300), Numbered()
        monkeypatch.setattr(ram_tier, "available_memory", lambda: (8 << 20) - tier.num_bytes)
        for index in range(300):
            put(tier, index, recipe)
        assert 5 << 20 < tier.num_bytes < 8 << 20

    def test_a_cleared_tier_begins_anew_for_processes_that_know_nothing_of_it(self):
        tier, recipe = RamTier(16 << 20, num_samples=300), Numbered()
        go, done = forking.Event(), forking.Event()

        def worker():
            assert num_held(tier, 300, recipe) > 100
            done.set()
            go.wait(30)
            assert num_held(tier, 300, recipe) == 0
            for index in range(300):
                put(tier, index, recipe)
            assert num_held(tier, 300, recipe) > 100

        for index in range(300):
            put(tier, index, recipe)
        process = forking.Process(target=worker)
        process.start()
        assert done.wait(30)
        tier.clear()
        assert tier.num_bytes < 1 << 20
        go.set()
        process.join(30)
        assert process.exitcode == 0
        assert num_held(tier, 300, recipe) > 100
        assert tier.num_bytes <= tier.budget

    def test_clearing_while_others_fill_never_mixes_values(self):
        tier, recipe = RamTier(6 << 20, num_samples=60), Numbered()

        def work():
            for _ in range(15):
                for index in range(60):
                    if not is_held(tier, index, recipe):
                        put(tier, index, recipe)

        def clear():
            for _ in range(60):
                tier.clear()
                time.sleep(0.004)

        assert run(work, work, clear) == [0, 0, 0]
        tier.clear()
        assert tier.num_bytes < 1 << 20  # late writers gave their pages back

    def test_a_budget_below_the_tables_is_refused(self):
        with pytest.raises(OSError, match="1000 samples cannot be kept in 8000 bytes"):
            RamTier(8000, num_samples=1000)


class TestDisk:
    """What only the tier on disk has to stand."""

    @pytest.fixture
    def root(self, tmp_path):
        return tmp_path / "samples"

    @pytest.fixture
    def filled(self, root):
        tier, recipe = DiskTier(64 << 20, fingerprint=b"numbered", root=root), Numbered(20_000)
        for index in range(10):
            assert put(tier, index, recipe)
        yield tier, recipe
        tier.close()

    def path(self, tier, index, recipe):
        return tier._folder / tier.key(index, recipe).hex()

    def test_values_outlive_the_tier(self, filled, root):
        tier, recipe = filled
        other = DiskTier(64 << 20, fingerprint=b"numbered", root=root)
        assert num_held(other, 10, recipe) == 10
        assert other.num_bytes == tier.num_bytes > 0
        other.close()

    @pytest.mark.parametrize("seed", range(4))
    def test_a_damaged_file_is_never_served_and_is_built_anew(self, filled, seed):
        tier, recipe = filled
        rng = random.Random(seed)
        for _ in range(60):
            index = rng.randrange(10)
            path = self.path(tier, index, recipe)
            good = path.read_bytes()
            data = bytearray(good)
            at = rng.randrange(len(data)) if rng.random() < 0.7 else rng.randrange(200)
            damage = rng.choice(["flip", "cut", "garbage", "zeros", "more"])
            if damage == "flip":
                data[at] ^= 1 << rng.randrange(8)
            elif damage == "cut":
                del data[at:]
            elif damage == "more":
                data += rng.randbytes(rng.choice((1, 64, 5000)))
            else:
                length = min(len(data) - at, rng.choice((8, 512, 5000)))
                data[at : at + length] = rng.randbytes(length) if damage == "garbage" else bytes(length)
            path.write_bytes(data)
            if at < 8 + 4 or bytes(data) != good:
                assert not is_held(tier, index, recipe)
                assert not path.exists()
                assert put(tier, index, recipe)
            assert is_held(tier, index, recipe)

    def test_what_is_not_the_values_file_is_never_served(self, filled, tmp_path):
        tier, recipe = filled
        other = Numbered(20_000, fingerprint=b"other")
        put(tier, 5, other)
        foreign = (tier._folder / tier.key(5, other).hex()).read_bytes()
        swapped = self.path(tier, 6, recipe).read_bytes()
        for content in (foreign, swapped, b"", b"hello"):
            path = self.path(tier, 5, recipe)
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            assert not is_held(tier, 5, recipe)
            assert put(tier, 5, recipe) and is_held(tier, 5, recipe)

    @linux
    def test_a_pipe_a_link_and_a_folder_in_a_files_place_do_no_harm(self, filled, tmp_path):
        tier, recipe = filled
        path = self.path(tier, 5, recipe)
        good = tmp_path / "good"
        shutil.copy(path, good)
        for replace in (os.mkfifo, lambda name: os.symlink(good, name)):
            path.unlink()
            replace(path)
            assert not is_held(tier, 5, recipe)
            assert put(tier, 5, recipe) and is_held(tier, 5, recipe)
        path.unlink()
        path.mkdir()
        assert not is_held(tier, 5, recipe) and not put(tier, 5, recipe)

    @linux
    def test_a_file_that_may_not_be_read_is_built_anew(self, filled):
        tier, recipe = filled
        self.path(tier, 5, recipe).chmod(0)

        def as_a_plain_user():
            if os.geteuid() == 0:
                os.setegid(65534)
                os.seteuid(65534)
            assert not is_held(tier, 5, recipe)

        assert run(as_a_plain_user) == [0]

    def test_a_damaged_ledger_is_counted_anew(self, filled, root):
        tier, recipe = filled
        before = tier.num_bytes
        for damage in (b"", b"\xff" * 20, b"x" * 3):
            (root / "ledger").write_bytes(damage)
            assert put(tier, 20, recipe)
            tier._ledger.discard(self.path(tier, 20, recipe))
            assert abs(tier.num_bytes - before) <= 3 * ledger.BLOCK

    def test_what_dead_processes_left_is_removed_when_room_is_short(self, filled, root, monkeypatch):
        tier, recipe = filled
        left = tier._folder / ".dead.1.1"
        left.write_bytes(b"x")
        os.utime(left, (0, 0))
        monkeypatch.setattr(tier._ledger, "_budget", tier.num_bytes)
        monkeypatch.setattr(ledger, "STALE", -1.0)
        assert not put(tier, 20, recipe)
        assert not left.exists()

    def test_the_store_used_longest_ago_makes_room_unless_it_is_open(self, root):
        recipe = Numbered(20_000)
        stores = [DiskTier(1 << 20, fingerprint=name, root=root) for name in (b"oldest", b"open", b"new")]
        for age, store in enumerate(stores[:2]):
            for index in range(15):
                assert put(store, index, recipe)
            os.utime(store._folder, (age, age))
        stores[0].close()
        for index in range(100, 140):
            put(stores[2], index, recipe)
            assert stores[2].num_bytes <= 1 << 20
        if sys.platform != "win32":
            assert not stores[0]._folder.exists()
        assert num_held(stores[1], 15, recipe) == 15
        assert sum(is_held(stores[2], index, recipe) for index in range(100, 140)) > 15
        for store in stores[1:]:
            store.close()

    @linux
    def test_a_full_disk_raises_and_leaves_nothing_behind(self, filled):
        tier, recipe = filled

        def work():
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            before = sorted(os.listdir(tier._folder)), tier.num_bytes
            with pytest.raises(OSError) as raised:
                put(tier, 20, recipe)
            assert raised.value.errno == errno.EFBIG
            assert (sorted(os.listdir(tier._folder)), tier.num_bytes) == before
            assert num_held(tier, 10, recipe) == 10

        assert run(work) == [0]

    def test_a_disk_that_fills_up_while_a_value_is_written_leaves_nothing_behind(self, filled, monkeypatch):
        tier, recipe = filled
        before = sorted(os.listdir(tier._folder)), tier.num_bytes

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            put(tier, 20, recipe)
        assert (sorted(os.listdir(tier._folder)), tier.num_bytes) == before

    @linux
    def test_a_folder_that_others_can_write_to_is_refused(self, root):
        root.mkdir()
        root.chmod(0o777)
        with pytest.raises(PermissionError, match="others can write to it"):
            DiskTier(1 << 20, fingerprint=b"x", root=root)
        root.chmod(0o700)
        DiskTier(1 << 20, fingerprint=b"x", root=root).close()
        assert stat.S_IMODE(root.stat().st_mode) == 0o700

    def test_a_sample_without_an_identity_is_not_kept(self, filled):
        tier, recipe = filled
        recipe.identity = lambda index: None
        assert tier.key(1, recipe) is None

    def test_the_folder_is_where_the_user_wants_it(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HASTEN_CACHE", str(tmp_path))
        assert samples_folder() == tmp_path / "hasten-samples"
        monkeypatch.delenv("HASTEN_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
        if sys.platform == "linux":
            assert samples_folder() == tmp_path / "x" / "hasten" / "hasten-samples"
