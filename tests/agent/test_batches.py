"""Samples are the script's own where the dataset makes them once more, to the bit, and in the order that was asked for."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hasten import Loader
from hasten.agent.batches import OwnSamples
from hasten.raw_run import RawQuality


class Cut(Dataset):
    """Draws from the generator that is seeded for each sample."""

    def __len__(self):
        return 12

    def draw(self):
        return torch.rand(3)

    def __getitem__(self, index):
        return index + self.draw()


class Own(Cut):
    """Draws from a generator of its own."""

    generator = torch.Generator().manual_seed(0)

    def draw(self):
        return torch.rand(3, generator=self.generator)


class Closing(Cut):
    """Can be asked for its samples only as long as it is open."""

    is_open = True

    def draw(self):
        if not self.is_open:
            raise OSError("closed")
        return super().draw()


def told(patches, make, *, epochs=2, closes=False):
    own = OwnSamples(patches, num_batches=10)
    loader = make()
    for _ in range(epochs):
        iterator = iter(loader)
        for batch in iterator:
            own.batch(iterator, batch)
    if closes:
        loader.dataset.is_open = False
    return noted(own)


def noted(own):
    quality = RawQuality()
    own.add_to(quality)
    return quality


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_our_loader_hands_out_is_what_the_dataset_makes(patches, num_workers):
    raw = told(patches, lambda: Loader(Cut(), 4, shuffle=True, num_workers=num_workers))
    assert raw.num_equal >= 8 and raw.num_other == 0 and raw.samples_trouble == ""
    assert [epoch.num_keys for epoch in raw.epochs] == [12, 12]
    assert {epoch.dataset for epoch in raw.epochs} == {0}


def test_samples_that_are_others_when_they_are_made_once_more_are_told(patches):
    raw = told(patches, lambda: Loader(Own(), 4))
    assert raw.num_equal == 0 and raw.num_other >= 8


def test_a_dataset_that_makes_none_once_more_is_trouble(patches):
    assert "closed" in told(patches, lambda: Loader(Closing(), 4), closes=True).samples_trouble


def test_torchs_loader_has_nothing_made_once_more_and_its_order_noted(patches):
    raw = told(patches, lambda: DataLoader(Cut(), 4))
    assert (raw.num_equal, raw.num_other) == (0, 0) and raw.epochs[0].order == raw.epochs[1].order


def test_loaders_that_are_made_anew_are_of_one_dataset_or_of_several(patches):
    training, validation = Cut(), Cut()
    own = OwnSamples(patches, num_batches=10)
    for dataset in (validation, training, validation, training):
        list(DataLoader(dataset, 4))
    assert [epoch.dataset for epoch in noted(own).epochs] == [0, 1, 0, 1]
