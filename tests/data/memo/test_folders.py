"""Image folders: hasten's decoder and transforms return torchvision's samples, even if the dataset changes."""

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

from hasten.data.loader import Loader
from hasten.data.memo import keys
from hasten.data.memo.folders import NotKnownError, folder_samples
from hasten.data.memo.ram import RamTier

torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
from torchvision import transforms  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402

TRAIN = [transforms.Resize(40), transforms.RandomCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "QUIET_SECONDS", 0.0)
    rng = np.random.default_rng(0)
    for number in range(12):
        path = tmp_path / "images" / f"class{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (50, 64, 3), np.uint8)).save(path)
    return tmp_path / "images"


def samples_of(dataset, **arguments):
    torch.manual_seed(1)
    loader = Loader(dataset, 4, **arguments)
    return [(images.clone(), labels.clone()) for _ in range(3) for images, labels in loader], loader


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for pair in zip(one, other) for a, b in zip(*pair))


class Plain(torch.utils.data.Dataset):
    """The same samples from an unknown class."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "threads"}], ids=str)
def test_samples_equal_torchvisions_with_and_without_a_cache(folder, arguments):
    dataset = ImageFolder(folder, transforms.Compose(TRAIN))
    expected, _ = samples_of(Plain(dataset))
    assert same(samples_of(dataset, **arguments)[0], expected)
    cached, loader = samples_of(dataset, cache="8 MiB", **arguments)
    assert same(cached, expected)
    assert loader.stats().cache.num_hits == 24 and loader.stats().cache.num_misses == 12


def test_subsets_of_several_folders_are_recognized(folder):
    dataset = ImageFolder(folder, transforms.Compose(TRAIN))
    parts = ConcatDataset([Subset(dataset, [3, 1]), dataset])
    assert same(samples_of(parts, cache="8 MiB")[0], samples_of(Plain(parts))[0])
    assert folder_samples(parts, pixels="identical") is not None
    with pytest.raises(NotKnownError):
        folder_samples(parts, pixels="identical").sample(torch.tensor(3), torch.Generator)


def test_a_transform_replaced_within_an_epoch_takes_effect_at_once(folder):
    dataset = ImageFolder(folder, transforms.Compose([transforms.Resize((20, 20)), transforms.ToTensor()]))
    loader = iter(Loader(dataset, 3, cache="8 MiB"))
    assert next(loader)[0].shape[-1] == 20
    dataset.transform = transforms.Compose([transforms.Resize((10, 10)), transforms.ToTensor()])
    assert next(loader)[0].shape[-1] == 10
    dataset.transform.transforms[0].size = (12, 12)
    assert next(loader)[0].shape[-1] == 12
    dataset.transform = lambda image: torch.tensor(image.size)
    assert next(loader)[0].tolist() == [list(dataset[index][0]) for index in (9, 10, 11)]


def test_a_file_list_changed_within_an_epoch_takes_effect_at_once(folder):
    dataset = ImageFolder(folder, transforms.ToTensor())
    loader = iter(Loader(dataset, 1, cache="8 MiB"))
    next(loader)
    dataset.samples[1] = (dataset.samples[5][0], 77)
    images, labels = next(loader)
    assert labels.tolist() == [77] and torch.equal(images[0], dataset[5][0])


@pytest.mark.parametrize("how", ["rewritten", "replaced", "another link"])
def test_a_file_that_changes_is_read_again(folder, how):
    dataset = ImageFolder(folder, transforms.ToTensor())
    path = dataset.samples[0][0]
    other = Image.new("RGB", Image.open(path).size, "teal")
    if how == "another link":
        os.rename(path, folder / "a.jpg")
        os.symlink(folder / "a.jpg", path)
        other.save(folder / "b.jpg")
    before, loader = samples_of(dataset, cache="8 MiB")
    time.sleep(0.01)
    if how == "rewritten":
        other.save(path)
    elif how == "replaced":
        other.save(folder / "new.jpg")
        os.replace(folder / "new.jpg", path)
    else:
        os.unlink(path)
        os.symlink(folder / "b.jpg", path)
    after = [images.clone() for images, _ in loader]
    assert not torch.equal(before[0][0][0], after[0][0])
    assert torch.equal(after[0][0], dataset[0][0]) and torch.equal(after[0][1], before[0][0][1])


class Renamed(ImageFolder):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, label + 100


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: Renamed(folder, transforms.ToTensor()),
        lambda folder: ImageFolder(folder, transforms.ToTensor(), loader=lambda path: Image.new("RGB", (9, 9))),
        lambda folder: ImageFolder(folder, transforms.Compose([transforms.RandomRotation(9), transforms.ToTensor()])),
    ],
    ids=["a subclass", "another loader", "another transform"],
)
def test_changed_classes_are_left_to_the_dataset(folder, change):
    dataset = change(folder)
    assert folder_samples(dataset, pixels="identical") is None
    assert same(samples_of(dataset, cache="8 MiB")[0], samples_of(Plain(dataset))[0])


def test_a_damaged_file_raises_the_datasets_error(folder):
    dataset = ImageFolder(folder, transforms.ToTensor())
    path = dataset.samples[2][0]
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2])
    with pytest.raises(OSError, match="truncated"):
        list(Loader(dataset, 4, cache="8 MiB"))


def test_it_is_pickled_together_with_its_dataset(folder):
    dataset = ImageFolder(folder, transforms.ToTensor())
    copy, found = pickle.loads(pickle.dumps((dataset, folder_samples(dataset, pixels="identical"))))
    assert found.dataset is copy


def test_a_center_crop_is_cached(folder):
    steps = [transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]
    dataset = ImageFolder(folder, transforms.Compose(steps))
    expected, _ = samples_of(Plain(dataset))
    cached, loader = samples_of(dataset, cache="8 MiB")
    assert same(cached, expected) and loader.stats().cache.num_hits == 24


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}], ids=str)
def test_samples_are_rebuilt_if_their_memory_is_released_while_copying(folder, arguments, monkeypatch):
    dataset = ImageFolder(folder, transforms.Compose(TRAIN))
    expected, _ = samples_of(Plain(dataset))
    view = RamTier.view

    def view_of_what_is_gone(self, key):
        found = view(self, key)
        return found and (np.zeros_like(found[0]) if found[0].size < 100 else _with_zeros(found[0]), lambda: False)

    monkeypatch.setattr(RamTier, "view", view_of_what_is_gone)
    cached, loader = samples_of(dataset, cache="8 MiB", **arguments)
    assert same(cached, expected) and loader.stats().cache.num_hits >= 24


def _with_zeros(memory):
    """Return the header followed by zeros, as after the pages of a value were released."""
    copy = memory.copy()
    copy[256:] = 0
    return copy


def test_a_transform_that_another_thread_forgets_meanwhile_is_looked_up_again(folder):
    class Vanishing(dict):
        """What is there when asked for, and gone when looked up."""

        def __contains__(self, _):
            return True

    dataset = ImageFolder(folder, transforms.Compose(TRAIN))
    found = folder_samples(dataset, pixels="identical")
    assert found.pipeline_of(dataset) is not None
    found._current = Vanishing()
    assert found.pipeline_of(dataset) is not None


def test_images_read_though_truncated_are_other_values(folder, monkeypatch):
    dataset = ImageFolder(folder, transforms.Compose(TRAIN))
    found = folder_samples(dataset, pixels="identical")
    pipeline, path = found.pipeline_of(dataset), dataset.samples[0][0]
    strict = found._key(path, pipeline)
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    assert found._key(path, pipeline) != strict


def test_a_transform_of_another_class_at_the_same_address_is_another(folder):
    dataset = ImageFolder(folder, transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()]))
    found = folder_samples(dataset, pixels="identical")
    before = found.pipeline_of(dataset).random
    dataset.transform.transforms[0].__class__ = transforms.RandomVerticalFlip  # as a reused address looks
    found.forget_transforms()
    assert found.pipeline_of(dataset).random != before
