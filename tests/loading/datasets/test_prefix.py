"""What is found of a dataset, and that it is found anew when the dataset has changed."""

import copy
import random

import numpy as np
import pytest
import torch
from recipes import Numbers, assert_kept, assert_not_kept, assert_same_samples, noisy, through_memory
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

from hasten.loading.datasets.prefix import Finder, find_recipe
from hasten.loading.datasets.watching import still_holds
from hasten.loading.generators import snapshot

EPOCH = 0


def test_a_dataset_that_draws_nothing_is_kept_whole():
    recipe = assert_kept(Numbers())
    assert not recipe.draws_globally


def test_a_settled_transform_is_done_before_keeping():
    recipe = assert_kept(Numbers(lambda x: x * 2))
    assert recipe.prepare(1).calls == ()


def test_a_random_transform_is_put_off():
    recipe = assert_kept(Numbers(noisy))
    assert recipe.draws_globally
    assert len(recipe.prepare(1).calls) == 1


class Drawing(Numbers):
    def __getitem__(self, index):
        return self.numbers[index] + np.random.rand()


class DrawingByTorch(Numbers):
    def __getitem__(self, index):
        return self.numbers[index] + torch.rand(20).numpy()


class DrawingNowAndThen(Numbers):
    def __getitem__(self, index):
        return self.numbers[index] * (-1 if random.random() < 0.02 else 1)


class DrawingForOne(Numbers):
    def __getitem__(self, index):
        return self.numbers[index] * (random.random() if index == 77 else 1)


class Mixing(Numbers):
    def __getitem__(self, index):
        return self.numbers[index] + self.numbers[random.randrange(len(self))]


class Counting(Numbers):
    calls = 0

    def __getitem__(self, index):
        self.calls += 1
        return self.numbers[index] + self.calls


class CountingInList(Numbers):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __getitem__(self, index):
        self.calls.append(index)
        return self.numbers[index]


class Remembering(Numbers):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def __getitem__(self, index):
        if index not in self.seen:
            self.seen[index] = self.numbers[index] * 2
        return self.seen[index]


class InPlace(Numbers):
    def __getitem__(self, index):
        numbers = self.numbers[index]
        numbers += 1
        return numbers


class OwnGenerator(Numbers):
    def __init__(self):
        super().__init__()
        self.source = np.random.default_rng(0)

    def __getitem__(self, index):
        return self.numbers[index] * (-1 if self.source.integers(1000) == 0 else 1)


class Seeding(Numbers):
    def __getitem__(self, index):
        torch.manual_seed(0)
        return self.numbers[index]


class Raising(Numbers):
    def __getitem__(self, index):
        raise OSError("no such sample")


class WithLock(Numbers):
    def __init__(self):
        super().__init__()
        self.iterator = iter(range(1000))

    def __getitem__(self, index):
        return next(self.iterator)


class WithStrangeSamples(Numbers):
    def __getitem__(self, index):
        return {1, 2}


class ByClassAttribute(Numbers):
    augment = staticmethod(noisy)

    def __getitem__(self, index):
        return self.augment(self.numbers[index])


class ByDelegation(Dataset):
    def __init__(self):
        self.inner = Drawing()

    def __len__(self):
        return 6

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __getitem__(self, index):
        return self.inner[index]


class ByMethodInList(Numbers):
    def __init__(self):
        super().__init__()
        self.steps = [self.double, noisy]

    def double(self, x):
        return x * 2

    def __getitem__(self, index):
        numbers = self.numbers[index]
        for step in self.steps:
            numbers = step(numbers)
        return numbers


class Closing(Numbers):
    is_open = [True]

    def __del__(self):
        self.is_open[0] = False


class Slotted(Numbers):
    __slots__ = ("extra",)


class AtOnce(Numbers):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize(
    "kind",
    [
        Drawing,
        DrawingByTorch,
        DrawingNowAndThen,
        DrawingForOne,
        Mixing,
        Counting,
        CountingInList,
        Remembering,
        InPlace,
        OwnGenerator,
        Seeding,
        Raising,
        WithLock,
        WithStrangeSamples,
        ByClassAttribute,
        ByDelegation,
        ByMethodInList,
        Closing,
        Slotted,
        AtOnce,
    ],
)
def test_a_dataset_in_doubt_is_left_as_it_is(kind):
    assert_not_kept(kind())


def test_tensors_in_memory_are_left_as_they_are():
    assert_not_kept(TensorDataset(torch.zeros(3)))


def test_an_empty_dataset_is_left_as_it_is():
    dataset = Numbers()
    dataset.numbers = dataset.numbers[:0]
    assert_not_kept(dataset)


class ByEpoch(Numbers):
    epoch = 0

    def __getitem__(self, index):
        return self.numbers[index] + self.epoch


class ByGlobalEpoch(Numbers):
    def __getitem__(self, index):
        return self.numbers[index] + EPOCH


def test_an_attribute_that_changes_by_epoch_changes_the_fingerprint():
    dataset = ByEpoch()
    finder = Finder(dataset)
    first = finder.find()
    assert finder.find() is first
    dataset.epoch = 1
    second = finder.find()
    assert second.fingerprint != first.fingerprint
    assert_same_samples(second, dataset)


def test_so_does_a_global_variable(monkeypatch):
    finder = Finder(ByGlobalEpoch())
    first = finder.find()
    monkeypatch.setitem(globals(), "EPOCH", 1)
    assert finder.find().fingerprint != first.fingerprint


def test_so_do_the_data():
    dataset = Numbers()
    finder = Finder(dataset)
    first = finder.find()
    dataset.numbers[2, 3] += 1
    assert finder.find().fingerprint != first.fingerprint


def test_another_random_transform_keeps_the_fingerprint_and_is_used():
    dataset = Numbers(noisy)
    finder = Finder(dataset)
    first = finder.find()
    dataset.transform = lambda x: x - np.float32(np.random.rand())
    second = finder.find()
    assert second.fingerprint == first.fingerprint
    assert_same_samples(second, dataset)


def test_a_settled_transform_in_the_token_of_a_random_one_is_another_recipe():
    dataset = Numbers(noisy)
    finder = Finder(dataset)
    first = finder.find()
    dataset.transform = lambda x: x + 1
    assert finder.find().fingerprint != first.fingerprint


def test_what_is_kept_can_be_looked_at_again():
    dataset = Numbers()
    recipe = find_recipe(dataset)
    prepared = through_memory(recipe.prepare(1))
    assert still_holds(recipe, 1, prepared)
    dataset.numbers[1] += 1
    assert not still_holds(recipe, 1, prepared)


def test_finding_moves_no_generator():
    before = snapshot()
    for dataset in (Numbers(noisy), Drawing(), Numbers()):
        find_recipe(dataset)
    assert snapshot() == before


def test_finding_leaves_the_dataset_as_it_was():
    for dataset in (Numbers(noisy), Counting(), CountingInList()):
        attributes = copy.deepcopy(vars(dataset))
        find_recipe(dataset)
        assert repr(vars(dataset)) == repr(attributes)


# Datasets of datasets


def test_a_subset_of_joined_datasets_is_made_by_their_recipes():
    joined = ConcatDataset([Numbers(noisy), Drawing(), Numbers()])
    dataset = Subset(joined, [13, 2, -1, 7, 2, 17])
    recipe = assert_kept_in_part(dataset)
    assert recipe.draws_globally


def assert_kept_in_part(dataset):
    recipe = find_recipe(dataset)
    assert recipe.keepable
    assert_same_samples(recipe, dataset)
    return recipe


def test_other_indices_are_another_recipe():
    dataset = Numbers()
    one, other = random_split(dataset, [3, 3], torch.Generator().manual_seed(0))
    assert find_recipe(one).fingerprint != find_recipe(other).fingerprint


def test_an_index_beyond_the_end_raises_what_torch_raises():
    dataset = ConcatDataset([Numbers(), Numbers()])
    recipe = find_recipe(dataset)
    for index in (12, -13):
        with pytest.raises((IndexError, ValueError)) as theirs:
            dataset[index]
        with pytest.raises(theirs.type):
            recipe.complete(recipe.prepare(index), torch.Generator())


class Wrapping(Dataset):
    def __init__(self, inner, transform):
        self.inner = inner
        self.transform = transform

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        numbers, label = self.inner[index]
        return self.transform(numbers), label


def test_a_wrapper_with_a_random_transform_of_its_own_is_split():
    assert_kept(Wrapping(Subset(Numbers(), [3, 1]), noisy))


def test_a_wrapper_of_a_random_dataset_is_left_as_it_is():
    assert_not_kept(Wrapping(Numbers(noisy), lambda x: x))
