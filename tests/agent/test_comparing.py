"""What a comparison of two ways to train needs: seeds, few batches, and what training does to the model."""

import base64
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.agent.batches import repeat_batches
from hasten.agent.quality import Quality
from hasten.agent.seeding import seed_everything
from hasten.patches import Patches


@pytest.fixture
def patches():
    patches = Patches()
    yield patches
    patches.undo()


def drawn():
    return torch.rand(1).item(), random.random(), np.random.random()


def test_every_generator_is_seeded_before_the_script_begins(patches):
    seed_everything(1, shift=0, patches=patches)
    first = drawn()
    seed_everything(1, shift=0, patches=patches)
    assert drawn() == first
    seed_everything(1, shift=5, patches=patches)
    assert all(a != b for a, b in zip(drawn(), first))


def test_the_scripts_own_seeds_are_shifted(patches):
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    own = drawn()
    seed_everything(1, shift=1000, patches=patches)
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    assert all(a != b for a, b in zip(drawn(), own))
    patches.undo()
    torch.manual_seed(7), random.seed(7), np.random.seed(7)
    assert drawn() == own


@pytest.mark.parametrize(
    "seed",
    [
        lambda: torch.manual_seed(seed=7),
        lambda: torch.manual_seed(np.int64(7)),
        lambda: random.seed(a=7),
        lambda: np.random.seed(seed=7),
        lambda: np.random.seed(np.uint8(7)),
    ],
)
def test_in_whatever_way_they_are_given(patches, seed):
    seed()
    own = drawn()
    seed_everything(1, shift=1000, patches=patches)
    seed()
    assert all(a != b for a, b in zip(drawn(), own))


def test_a_seed_that_is_no_number_stays(patches):
    seed_everything(1, shift=1000, patches=patches)
    random.seed("a word")
    first = random.random()
    random.seed("a word")
    assert random.random() == first


def test_the_same_few_batches_come_over_and_over_in_epochs_as_long_as_ever(patches):
    repeat_batches(3, patches, ends=False)
    loader = DataLoader(TensorDataset(torch.arange(100)), batch_size=10, shuffle=True)
    first, second = [[b.tolist() for (b,) in loader] for _ in range(2)]
    assert len(first) == len(second) == len(loader) == 10
    assert first[3:6] == first[6:9] == first[:3] == second[:3]
    assert len({tuple(batch) for batch in first}) == 3


def test_with_workers_and_with_our_loader_too(patches):
    from hasten.data.loader import Loader

    repeat_batches(2, patches, ends=False)
    dataset = TensorDataset(torch.arange(64).float()[:, None].repeat(1, 200))
    for loader in (DataLoader(dataset, 8, shuffle=True, num_workers=1), Loader(dataset, 8, shuffle=True)):
        first, second = [[b[:, 0].tolist() for (b,) in loader] for _ in range(2)]
        assert len(first) == 8 and first[:2] == first[6:] == second[:2]


def test_epochs_that_end_with_the_last_of_them(patches):
    repeat_batches(3, patches, ends=True)
    loader = DataLoader(TensorDataset(torch.arange(100)), batch_size=10, shuffle=True)
    first, second = [[b.tolist() for (b,) in loader] for _ in range(2)]
    assert len(first) == 3 and first == second
    assert len(loader) == 10, "the script's own arithmetic stays"


@pytest.mark.parametrize("ends", [False, True])
def test_a_loader_made_anew_in_each_epoch_gives_the_same_batches_too(patches, ends):
    repeat_batches(3, patches, ends=ends)
    dataset = TensorDataset(torch.arange(100))
    first, second = [[b.tolist() for (b,) in DataLoader(dataset, 10, shuffle=True)] for _ in range(2)]
    assert first == second and len(first) == (3 if ends else 10)


def test_after_undo_all_batches_come(patches):
    repeat_batches(2, patches, ends=False)
    patches.undo()
    loader = DataLoader(TensorDataset(torch.arange(40)), batch_size=10)
    assert len({tuple(b.tolist()) for (b,) in loader}) == 4


def trained(patches, *, steps=3, freeze=False, **settings):
    torch.manual_seed(0)
    quality = Quality(patches, num_batches=2, **settings)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if freeze else 0.1)
    for number in range(steps):
        x = torch.full((2, 4), float(number)) + torch.arange(2)[:, None]
        quality.batch((x, torch.ones(2)))
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
    return quality.raw(), model


def test_losses_gradients_and_batches_are_noted(patches):
    raw, _ = trained(patches)
    assert len(raw.losses) == 3 and all(isinstance(x, float) for x in raw.losses)
    assert len(raw.batches) == 2 and raw.batches[0] != raw.batches[1]
    assert [len(rows) for rows in raw.rows] == [2, 2]
    assert len(base64.b64decode(raw.gradients)) == 5 * 4
    assert raw.moved and all(raw.moved)


def test_parameters_that_stand_still_are_seen(patches):
    raw, _ = trained(patches, freeze=True)
    assert raw.moved and not any(raw.moved)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, torch.bfloat16, torch.float8_e4m3fn])
def test_an_optimizer_may_hold_parameters_of_any_dtype(patches, dtype):
    quality = Quality(patches, num_batches=1)
    held = nn.Parameter(torch.ones(3).to(dtype), requires_grad=False)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([held, weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    assert quality.raw().moved == [False, True]


def test_the_same_sample_has_the_same_fingerprint_in_another_batch(patches):
    quality = Quality(patches, num_batches=4)
    rows = torch.randn(3, 5)
    quality.batch(rows[:2])
    quality.batch(rows[1:])
    (_, second), (again, _) = quality.raw().rows
    assert second == again


def test_a_script_without_a_scalar_loss_has_no_losses(patches):
    quality = Quality(patches, num_batches=1)
    torch.autograd.backward([torch.ones(2, requires_grad=True)], [torch.ones(2)])
    assert quality.raw().losses == []


def test_a_change_of_several_last_bits_is_as_many_times_as_large(patches):
    model = nn.Linear(4, 1)
    before = model.weight.detach().clone()
    quality = Quality(patches, num_batches=1, perturb=8)
    quality.batch(torch.ones(2, 4))
    following = before
    for _ in range(8):
        following = torch.nextafter(following, torch.full_like(before, torch.inf))
    assert torch.allclose(model.weight - before, following - before, rtol=0.5) and not torch.equal(
        model.weight, before
    )


def test_a_change_in_the_last_bit_is_one(patches):
    model = nn.Linear(4, 1)
    before = model.weight.detach().clone()
    quality = Quality(patches, num_batches=1, perturb=1)
    quality.batch(torch.ones(2, 4))
    assert torch.equal(model.weight, torch.nextafter(before, torch.full_like(before, torch.inf)))
    quality.batch(torch.ones(2, 4))
    assert torch.equal(model.weight, torch.nextafter(before, torch.full_like(before, torch.inf))), "once is enough"
