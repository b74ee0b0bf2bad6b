"""Datasets to find recipes of, and what must hold for every recipe."""

import itertools
import pickle

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from hasten.loading.datasets.keeping import kept, opened
from hasten.loading.datasets.prefix import Finder
from hasten.loading.datasets.survey import digest_of
from hasten.loading.generators import seed_generators
from hasten.loading.memory.nest import finished
from hasten.loading.memory.packing import pack, unpack, write_buffers
from hasten.loading.recipe import Plain

NUM_FILES = 6


def save_image(path, seed, mode="RGB"):
    shape = (50, 60, 3) if mode == "RGB" else (50, 60)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(path, quality=90)


def through_memory(value):
    header, buffers, size = pack(value)
    memory = bytearray(size)
    write_buffers(buffers, memoryview(memory))
    return unpack(header, memoryview(memory)).value


def normal(sample):
    """Of a sample, what it is, whoever holds its leaves."""
    digest = digest_of(opened(kept(sample), []))
    assert digest is not None
    return digest


def assert_same_samples(recipe, dataset, seeds=(1, 2, 3), indices=None):
    for index, seed in itertools.product(indices or range(len(dataset)), seeds):
        seed_generators(seed)
        expected = dataset[index]
        for prepared in (recipe.prepare(index), through_memory(recipe.prepare(index))):
            seed_generators(seed)
            sample = finished(recipe.complete(prepared, torch.Generator().manual_seed(seed)))
            assert normal(sample) == normal(expected)


def assert_kept(dataset):
    finder = Finder(dataset)
    recipe = finder.find()
    assert recipe.keepable, finder.reason
    assert_same_samples(recipe, dataset)
    assert not any(getattr(recipe.prepare(index), "calls", ()) is None for index in range(len(dataset)))
    if is_picklable(dataset):
        assert_same_samples(pickle.loads(pickle.dumps(recipe)), dataset, seeds=(1,))
    return recipe


def is_picklable(dataset):
    try:
        pickle.dumps(dataset)
    except (AttributeError, pickle.PicklingError):  # lambdas and classes of a test's own
        return False
    return True


def assert_not_kept(dataset):
    finder = Finder(dataset)
    assert isinstance(finder.find(), Plain)
    assert finder.reason
    return finder.reason


class Numbers(Dataset):
    """Numbers in memory, and a transform."""

    def __init__(self, transform=None):
        self.numbers = np.arange(120, dtype=np.float32).reshape(NUM_FILES, 20)
        self.transform = transform

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        numbers = self.numbers[index]
        if self.transform is not None:
            numbers = self.transform(numbers)
        return numbers, index % 2


class Photos(Dataset):
    """Image files, and a transform."""

    def __init__(self, files, transform=None):
        self.files = files
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return {"image": image, "label": torch.tensor(index), "file": self.files[index]}


def noisy(x):
    return x + np.random.rand(*x.shape).astype(np.float32)


def pixels_of(image):
    return torch.from_numpy(np.array(image))
