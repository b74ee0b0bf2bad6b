"""What one loader has kept of a dataset serves the next one, and goes with the dataset."""

import gc
import os
import weakref

import pytest
import torch
from recipes import Photos, pixels_of, save_image
from torch.utils.data import WeightedRandomSampler

from hasten import Loader
from hasten.loading.shelf import _shelves, on_shelf


def shelf_of(dataset):
    return _shelves.get(id(dataset), [])


@pytest.fixture
def photos(tmp_path):
    """Eight images and a dataset that decodes them."""
    files = [str(tmp_path / f"{number}.png") for number in range(8)]
    for number, file in enumerate(files):
        save_image(file, number)
    return Photos(files, transform=pixels_of)


def counts(loader):
    cache = loader.stats().cache
    return sum(tier.num_hits for tier in cache.tiers), cache.num_misses


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_made_anew_in_each_epoch_finds_what_the_one_before_it_kept(photos, num_workers):
    for epoch in range(3):
        loader = Loader(photos, 4, shuffle=True, num_workers=num_workers, cache="64 MiB")
        assert len(list(loader)) == 2
        hits, misses = counts(loader)
        assert misses == 8 and hits == 8 * epoch
        del loader


def test_another_wish_is_another_cache(photos):
    first, second = Loader(photos, 4, cache="64 MiB"), Loader(photos, 4, cache="32 MiB")
    list(first), list(second)
    assert counts(second)[1] == 8
    assert len(shelf_of(photos)) == 2


def test_what_was_kept_goes_with_the_dataset(photos):
    mine = Photos(photos.files, photos.transform)
    list(Loader(mine, 4, cache="64 MiB"))
    cache, number = weakref.ref(shelf_of(mine)[0].cache), id(mine)
    del mine
    gc.collect()
    assert cache() is None and number not in _shelves


def test_a_dataset_that_changed_is_read_anew(photos, tmp_path):
    list(Loader(photos, 4, cache="64 MiB"))
    photos.files[0] = str(tmp_path / "other.png")
    save_image(photos.files[0], 99)
    loader = Loader(photos, 4, cache="64 MiB")
    list(loader)
    assert counts(loader)[1] == 8


def test_what_a_loader_wants_no_more_does_not_stay_beside_what_it_wants_now(photos):
    loader = Loader(photos, 4, cache="64 MiB")
    list(loader)
    photos.transform = twice
    list(loader)
    assert len(shelf_of(photos)) == 1


def test_weights_that_change_throw_nothing_away(photos):
    sampler = WeightedRandomSampler([1.0] * 8, 8, replacement=False)
    loader = Loader(photos, 4, sampler=sampler, cache="64 MiB")
    list(loader)
    sampler.weights = torch.arange(1.0, 9.0)
    list(loader)
    assert counts(loader) == (8, 8)


def test_a_look_at_what_is_not_kept_makes_no_sample(photos):
    loader = Loader(photos, 4, sampler=[0, 1], cache="64 MiB")
    for _ in range(4):
        list(loader)
    assert counts(loader) == (6, 2)


def samples_threads(image):
    return torch.tensor(torch.get_num_threads()).repeat(3)


def test_what_workers_made_with_one_thread_is_looked_at_with_one(photos):
    photos.transform = samples_threads
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loader = Loader(photos, 4, num_workers=1, cache="64 MiB")
        for _ in range(3):
            list(loader)
    finally:
        torch.set_num_threads(threads)
    assert counts(loader) == (16, 8)


class Unhashable(Photos):
    __hash__ = None

    def __eq__(self, other):
        return True


def test_datasets_that_are_equal_or_have_no_hash_keep_for_themselves(photos):
    one, other = Unhashable(photos.files, pixels_of), Unhashable(photos.files, pixels_of)
    for epoch in range(2):
        loader = Loader(one, 4, cache="64 MiB")
        list(loader)
        assert counts(loader) == (8 * epoch, 8)
    assert not shelf_of(other)


def test_two_loaders_of_a_dataset_that_has_two_states_each_keep_theirs(photos):
    photos.transform = twice
    first, second = Loader(photos, 4, cache="64 MiB"), Loader(photos, 4, cache="64 MiB")
    for _ in range(3):
        photos.transform = pixels_of
        list(first)
        photos.transform = twice
        list(second)
    assert counts(first)[1] == counts(second)[1] == 8


def twice(image):
    return 2 * pixels_of(image)


def test_what_another_loader_kept_of_files_that_were_written_anew_is_not_served(photos):
    list(Loader(photos, 4, cache="64 MiB"))
    for number, file in enumerate(photos.files):
        save_image(file, 50 + number)
    assert [batch["image"].sum() for batch in Loader(photos, 4, cache="64 MiB")] == [
        batch["image"].sum() for batch in Loader(photos, 4)
    ]


def test_a_forked_child_keeps_for_itself(photos):
    list(Loader(photos, 4, cache="64 MiB"))
    (kept,) = shelf_of(photos)
    child = os.fork()
    if child == 0:
        os._exit(0 if on_shelf(photos, kept.asked) is None else 1)
    assert os.waitpid(child, 0)[1] == 0 and on_shelf(photos, kept.asked) is kept
