"""The sampler's order as vectors, and data gathered from memory."""

import functools

import numpy as np
import pytest
import torch
from samples import same
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
)

from hasten.data.epoch.columns import columns_of
from hasten.data.epoch.in_memory import InMemoryIterator
from hasten.data.epoch.order import Repeats, batches_of_indices
from hasten.data.loader import Loader


@pytest.mark.parametrize("length", [1, 6, 7, 20])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_shuffled_order_and_its_draws_equal_the_samplers(length, drop_last, own):
    generator = torch.Generator() if own else None
    sampler = BatchSampler(RandomSampler(range(length), generator=generator), 7, drop_last)
    found = []
    for order in (iter, batches_of_indices):
        torch.manual_seed(4)
        if generator is not None:
            generator.manual_seed(4)
        batches = [[int(index) for index in batch] for batch in order(sampler)]
        found.append((batches, (generator or torch.default_generator).get_state().tolist()))
    assert found[0] == found[1]


def test_an_unknown_order_is_left_to_its_sampler():
    class Mine(SequentialSampler):
        pass

    for sampler in (
        BatchSampler(Mine(range(5)), 2, False),
        BatchSampler(RandomSampler(range(5), replacement=True), 2, False),
        BatchSampler(RandomSampler(range(5), num_samples=3), 2, False),
        [[1, 2]],
    ):
        assert batches_of_indices(sampler) is None


def test_only_a_sampler_that_may_repeat_is_counted():
    assert Repeats(RandomSampler(range(5))).count([1, 1]) is None
    counted = Repeats([1, 1])
    assert counted.count([1, 2]) is None and counted.count([1, 1, 3]) == [1, 2, 0]


class Indexing(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        """An image and its label."""
        return self.images[index], self.labels[index]


class AsDict(Indexing):
    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}


class InlinePool(Indexing):
    def __getitem__(self, index):
        return self.images[index]


class Adding(Indexing):
    def __getitem__(self, index):
        return self.images[index] + 1, self.labels[index]


class Branching(Indexing):
    def __getitem__(self, index):
        if index == 1:
            return self.images[0], self.labels[0]
        return self.images[index], self.labels[index]


class Computed(Indexing):
    @property
    def images(self):
        return self.held * 2

    @images.setter
    def images(self, images):
        self.held = images


class InBatches(Indexing):
    def __getitems__(self, indices):
        return [(self.images[index] + 1, index) for index in indices]


class Wrapped(Indexing):
    @functools.wraps(Indexing.__getitem__)
    def __getitem__(self, index):
        return self.images[index] * (1 + (index == 17)), self.labels[index]


IMAGES, LABELS = torch.randn(30, 4), torch.arange(30)


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(IMAGES, LABELS),
        TensorDataset(IMAGES.bool()),
        Subset(TensorDataset(IMAGES), [5, 3, 7, 7]),
        Subset(Subset(TensorDataset(IMAGES), range(10, 20)), [0, 9, 4]),
        StackDataset(IMAGES, LABELS),
        StackDataset(x=IMAGES, y=LABELS),
        Indexing(IMAGES, LABELS),
        Indexing(IMAGES.numpy(), LABELS.numpy().astype(np.int32)),
        AsDict(IMAGES.numpy().astype(np.float64), LABELS),
        InlinePool(IMAGES, LABELS),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_a_dataset_that_only_indexes_is_gathered(dataset):
    assert columns_of(dataset) is not None
    for arguments in ({"shuffle": True}, {"sampler": [2, 1, 0, -1]}, {"drop_last": True}):
        torch.manual_seed(0)
        expected = list(DataLoader(dataset, 3, **arguments))
        torch.manual_seed(0)
        loader = Loader(dataset, 3, **arguments)
        assert isinstance(iter(loader), InMemoryIterator)
        torch.manual_seed(0)
        assert same(list(loader), expected)


@pytest.mark.parametrize("kind", [Adding, Branching, Computed, InBatches, Wrapped])
def test_a_dataset_that_does_more_is_not_gathered(kind):
    dataset = kind(IMAGES, LABELS)
    assert columns_of(dataset) is None
    assert same(list(Loader(dataset, 3)), list(DataLoader(dataset, 3)))


def test_changes_between_epochs_take_effect():
    dataset = TensorDataset(IMAGES.clone())
    loader = Loader(dataset, 30)
    list(loader)
    dataset.tensors = (IMAGES + 1,)
    assert torch.equal(next(iter(loader))[0], IMAGES + 1)


def test_an_index_out_of_range_raises():
    with pytest.raises(IndexError):
        list(Loader(TensorDataset(IMAGES), 2, sampler=[29, 30]))


@pytest.mark.parametrize("sampler", [[2.5], ["a"], [True, False], [slice(0, 2)], [[1, 2]]], ids=str)
def test_unusual_indices_are_passed_to_the_dataset(sampler):
    dataset = TensorDataset(IMAGES)
    try:
        expected = list(DataLoader(dataset, 2, sampler=sampler))
    except Exception as error:
        with pytest.raises(type(error)):
            list(Loader(dataset, 2, sampler=sampler))
    else:
        assert same(list(Loader(dataset, 2, sampler=sampler)), expected)


class OnceAnEpoch:
    """Batches in an order that is drawn by `iter`, not by the first `next`."""

    def __init__(self):
        self.num_asked = 0

    def __iter__(self):
        self.num_asked += 1
        return iter([[self.num_asked, 0], [2, 3]])

    def __len__(self):
        return 2


@pytest.mark.parametrize("persistent", [False, True])
def test_a_sampler_is_iterated_once_per_epoch_like_torch(persistent):
    sampler = OnceAnEpoch()
    loader = Loader(
        list(range(10)), batch_sampler=sampler, num_workers=int(persistent), persistent_workers=persistent
    )
    assert [[batch.tolist() for batch in loader] for _ in range(3)] == [[[n, 0], [2, 3]] for n in (1, 2, 3)]
    in_memory = Loader(TensorDataset(torch.arange(10)), batch_sampler=OnceAnEpoch())
    assert [[batch[0].tolist() for batch in in_memory] for _ in range(2)] == [[[n, 0], [2, 3]] for n in (1, 2)]


def test_tensors_that_numpy_sees_too_may_change_unnoticed():
    own, array = torch.arange(6), np.arange(6)
    assert not columns_of(TensorDataset(own)).has_arrays
    assert columns_of(TensorDataset(torch.from_numpy(array))).has_arrays
    own.numpy()
    assert columns_of(TensorDataset(own)).has_arrays
