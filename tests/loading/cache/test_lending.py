"""What the tier in memory lends instead of copying it is the same every time, whatever its borrowers do."""

import gc
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hasten import Loader
from hasten.loading.cache import ram_tier
from hasten.loading.cache.ram_tier import RamTier
from hasten.loading.cache.tiers import MISSING
from hasten.loading.memory import sharing, view
from hasten.loading.memory.packing import pack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux undoes what was written")

KEY = (3).to_bytes(8, "little") + bytes(8)
PIXELS = np.arange(200_000, dtype=np.uint32)


@pytest.fixture
def tier(monkeypatch):
    monkeypatch.setattr(ram_tier, "spare_memory", lambda: 0)
    made = RamTier(8 << 20, num_samples=4)
    assert made.put(KEY, pack([PIXELS, torch.zeros(3)]), 0.1)
    yield made
    made.close()


def pixels_of(tier):
    return tier.get(KEY, lambda value, _: value[0].copy())


def is_lent(tier):
    """Whether the array lies in the tier's own memory."""
    return tier.get(
        KEY, lambda value, _: np.may_share_memory(value[0], np.frombuffer(tier._view[0].memory, np.uint8))
    )


def test_what_is_written_to_a_loan_is_undone(tier):
    def spoil(value, _):
        value[0][:] = 0
        return value[0].any()

    assert not tier.get(KEY, spoil)
    assert np.array_equal(pixels_of(tier), PIXELS) and is_lent(tier)


KEEPERS = {"array": lambda array: array, "view": lambda array: array[7:], "buffer": memoryview}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_an_array_that_is_kept_stays_as_it_is_when_its_memory_is_given_back(tier, keep, monkeypatch):
    held = tier.get(KEY, lambda value, _: keep(value[0]))
    assert not is_lent(tier)
    monkeypatch.setattr(ram_tier, "spare_memory", lambda: 1 << 40)
    tier.relieve()
    assert pixels_of(tier) is MISSING
    assert np.array_equal(np.asarray(held), keep(PIXELS))


def test_a_tensor_that_is_kept_stays_as_it_is_too(tier, monkeypatch):
    held = tier.get(KEY, lambda value, _: value[1].add_(1)[1:])
    monkeypatch.setattr(ram_tier, "spare_memory", lambda: 1 << 40)
    tier.relieve()
    assert held.tolist() == [1.0, 1.0]


def test_what_is_done_to_an_array_that_was_kept_is_not_served(tier):
    held = tier.get(KEY, lambda value, _: value[0])
    held[:] = 0
    assert np.array_equal(pixels_of(tier), PIXELS)
    del held
    gc.collect()
    assert is_lent(tier) and np.array_equal(pixels_of(tier), PIXELS)


def test_a_value_is_not_lent_to_two_at_once(tier):
    def inside(value, _):
        value[0][:] = 0
        return not is_lent(tier) and np.array_equal(pixels_of(tier), PIXELS)

    assert tier.get(KEY, inside)
    assert is_lent(tier) and np.array_equal(pixels_of(tier), PIXELS)


def test_what_an_exception_holds_is_kept_as_long_as_the_exception(tier):
    with pytest.raises(ZeroDivisionError) as caught:
        tier.get(KEY, lambda value, _: len(value) // 0)
    assert not is_lent(tier) and np.array_equal(pixels_of(tier), PIXELS)
    del caught
    gc.collect()
    assert is_lent(tier)


def test_where_writes_cannot_be_undone_all_are_copies(tier, monkeypatch):
    monkeypatch.setattr(view, "_writes_can_be_undone", lambda: False)
    assert not is_lent(tier)
    assert np.array_equal(pixels_of(tier), PIXELS)


def test_where_memory_does_not_do_for_a_copy_the_sample_is_made_anew(tier, monkeypatch):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr(view, "_writes_can_be_undone", lambda: False)
    monkeypatch.setattr(sharing.SharedFile, "read", refuse)
    assert pixels_of(tier) is MISSING


class Frozen(Dataset):
    """Arrays that are read-only, as those are that view an image of Pillow's."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.transform(np.frombuffer(bytes([index, 1]) * 50_000, np.uint8))


class Remembering:
    """Mixes each array with the one before it."""

    def __init__(self):
        self.last = np.zeros(100_000, np.uint8)

    def __call__(self, array):
        mixed = array // 2 + self.last // 2
        self.last = array
        return mixed


def add_in_place(array):
    noise = int(torch.randint(1, 2, ()))
    return torch.from_numpy(array).add_(noise)[:3]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("make", [Remembering, lambda: add_in_place], ids=["remembering", "in place"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_transforms_that_keep_or_change_what_they_get_give_torchs_batches(make, num_workers):
    ours = Loader(Frozen(make()), 2, num_workers=num_workers, persistent_workers=bool(num_workers), cache="8 MiB")
    theirs = DataLoader(Frozen(make()), 2, num_workers=num_workers, persistent_workers=bool(num_workers))
    for _ in range(4):
        for batch, expected in zip(ours, theirs, strict=True):
            assert torch.equal(batch, expected)
    cache = ours.stats().cache
    assert cache is not None and cache.tiers[0].num_hits >= 18
