"""Detection of random draws, and seeds that depend only on (seed, epoch, index)."""

import random

import numpy as np
import pytest
import torch

from hasten.data.generators import (
    has_cached_normal,
    mix,
    preserve_generators,
    restore,
    sample_seed,
    seed_generators,
    snapshot,
)

DRAWS = {
    "torch": lambda: torch.rand(1),
    "torch dropout": lambda: torch.nn.functional.dropout(torch.ones(3)),
    "random": random.random,
    "random shuffle": lambda: random.shuffle([1, 2, 3]),
    "numpy": np.random.rand,
    "numpy normal": lambda: np.random.randn(2),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_every_draw_is_detected_and_can_be_undone(draw):
    seed_generators(3)
    before = snapshot()
    draw()
    assert snapshot() != before
    restore(before)
    assert snapshot() == before
    expected = torch.rand(1), random.random(), np.random.rand()
    seed_generators(3)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_no_draw_leaves_the_snapshot_equal():
    before = snapshot()
    torch.ones(3).sum(), np.zeros(3), sorted([2, 1])
    assert snapshot() == before


@pytest.mark.parametrize("other", [np.random.PCG64, np.random.Philox])
def test_another_bit_generator_behind_numpys_functions_is_supported(other):
    known = np.random.get_bit_generator()
    np.random.set_bit_generator(other(1))
    try:
        before = snapshot()
        np.random.randn()
        after = snapshot()
        assert before.moved(after) == {"numpy"} and not after.moved(snapshot())
        restore(before)
        assert not before.moved(snapshot()) and not has_cached_normal()
    finally:
        np.random.set_bit_generator(known)


def test_a_cached_normal_number_is_detected_and_preserved():
    np.random.seed(1)
    assert not has_cached_normal()
    np.random.randn()
    assert has_cached_normal()
    with preserve_generators():
        seed_generators(5)
        assert not has_cached_normal()
    assert has_cached_normal()


def test_used_generators_are_named_and_can_be_seeded_separately():
    seed_generators(4)  # another test may have left them as seed 5 does
    before = snapshot()
    seed_generators(5, {"numpy", "python"})
    assert before.moved(snapshot()) == {"numpy", "python"}


def test_a_cached_normal_number_is_preserved_if_numpy_was_not_used():
    np.random.seed(1)
    np.random.randn()
    before = snapshot()
    random.random()
    restore(before)
    assert has_cached_normal()


def test_seeds_depend_on_each_part_and_on_their_order():
    seeds = {mix(*parts) for parts in [(1, 2, 3), (1, 3, 2), (0, 2, 3), (1, 2), (1, 2, 3, 0), (1, 2, -3)]}
    assert len(seeds) == 6 and all(0 <= seed < 1 << 64 for seed in seeds)


def test_an_index_has_one_seed_whatever_its_type():
    assert sample_seed(1, 5, 0) == sample_seed(1, np.int64(5), 0) == sample_seed(1, torch.tensor(5), 0)
    assert sample_seed(1, "a", 0) != sample_seed(1, "b", 0)


def test_a_million_samples_have_a_million_seeds():
    assert len({sample_seed(9, index, 0) for index in range(200_000)}) == 200_000
