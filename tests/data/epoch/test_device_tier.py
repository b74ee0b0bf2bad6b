"""Images cached on the device: bit-identical batches, whatever happens to files, transforms and memory."""

import gc
import logging
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

from hasten.data.epoch import device_tier
from hasten.data.images.pipeline import compile_transforms
from hasten.data.images.pixels import to_tensor
from hasten.data.loader import Loader
from hasten.data.memo import keys
from hasten.data.memo.folders import Prepared, folder_samples

pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

FLOATS = [transforms.ToTensor(), transforms.Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])]
CROPS = [transforms.RandomCrop(32), transforms.RandomHorizontalFlip()]
TRAIN = [transforms.Resize(40), *CROPS, *FLOATS]
IN_ANY_ORDER = [
    transforms.RandomVerticalFlip(),
    transforms.RandomCrop((36, 38)),
    transforms.RandomHorizontalFlip(0.7),
    transforms.RandomCrop((32, 30)),
    transforms.RandomVerticalFlip(0.4),
]
LISTS = {
    "crop and flip": TRAIN,
    "no resizing": [*CROPS, *FLOATS],
    "v2": [
        v2.ToImage(),
        *[v2.RandomCrop(30), v2.RandomVerticalFlip()],
        v2.ToDtype(torch.float32, scale=True),
        v2.ToPureTensor(),
    ],
    "nothing random": [transforms.Resize(40), transforms.CenterCrop(32), *FLOATS],
    "in any order": [transforms.Resize(40), *IN_ANY_ORDER, *FLOATS],
    "to bytes and to floats": [
        transforms.RandomCrop(32),
        transforms.PILToTensor(),
        transforms.ConvertImageDtype(torch.float32),
    ],
}
OTHERS = {
    "RandomResizedCrop": [transforms.RandomResizedCrop(32), *FLOATS],
    "padded": [transforms.RandomCrop(32, padding=4), *FLOATS],
    "padded if needed": [transforms.RandomCrop(32, pad_if_needed=True), *FLOATS],
    "cropped after a flip": [transforms.RandomHorizontalFlip(), transforms.CenterCrop(32), *FLOATS],
    "of unknown meaning": [transforms.RandomRotation(9), transforms.CenterCrop(32), *FLOATS],
    "bytes": [transforms.RandomCrop(32), transforms.PILToTensor()],
}
WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2, "workers": "threads"},
    {"num_workers": 2, "workers": "processes", "multiprocessing_context": "fork"},
]
NUM_FILES = 12


@pytest.fixture(autouse=True)
def images_are_moved_at_once(monkeypatch):
    monkeypatch.setattr(keys, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(device_tier, "FILL_SHARE", 1e6)
    monkeypatch.setattr(device_tier, "MAX_FILL_SECONDS", 60.0)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(NUM_FILES):
        path = tmp_path / "images" / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (50, 64) if number == 5 else (50 + number, 64, 3)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    return tmp_path / "images"


def folder_of(folder, steps=TRAIN, **arguments):
    return ImageFolder(folder, transforms.Compose(list(steps)), **arguments)


def loader_of(dataset, *, seed=1, **arguments):
    torch.manual_seed(seed)
    return Loader(dataset, 4, shuffle=True, device="cuda", **arguments)


def on_host(batch):
    images, labels = batch
    assert images.is_cuda and images.is_contiguous()
    return images.cpu(), labels.cpu() if isinstance(labels, torch.Tensor) else labels


def epochs_of(loader, number=3):
    return [on_host(batch) for _ in range(number) for batch in loader]


def same(one, other):
    assert len(one) == len(other)
    return all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(one, other))


def tier_of(loader):
    [tier] = [tier for tier in loader.stats().cache.tiers if tier.name == "device"]
    return tier


# On the host, on any machine


@pytest.mark.parametrize("name", LISTS)
def test_a_crop_of_a_prepared_image_equals_the_transforms_result(name):
    pipeline = compile_transforms(LISTS[name], pixels="identical")
    assert pipeline.only_cuts
    for seed in range(20):
        shape = (50, 64) if seed % 5 == 0 else (50 + seed, 64, 3)
        prepared = pipeline.prepare(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))
        one, other = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        expected = pipeline.complete(prepared, one).pixels
        cut = pipeline.cut(*prepared.shape[:2], other)
        assert torch.equal(cut.of(to_tensor(prepared)).expand(3, -1, -1), expected)
        assert torch.equal(one.get_state(), other.get_state())


@pytest.mark.parametrize("name", OTHERS)
def test_a_pipeline_that_does_more_than_crop_and_flip_is_not_cropped(name):
    pipeline = compile_transforms(OTHERS[name], pixels="identical")
    assert pipeline is None or not pipeline.only_cuts
    if pipeline is not None and pipeline.scaling is not None:
        with pytest.raises(ValueError):
            pipeline.cut(50, 64, torch.Generator())


def test_a_sample_with_another_image_or_an_error_is_not_cropped(folder):
    dataset = folder_of(folder)
    found = folder_samples(dataset, pixels="identical")
    key = found.key_to_cut(3)
    held = Prepared(key, 40, 51)
    assert found.cut_sample(3, held, torch.Generator).label == dataset.targets[3]
    assert found.cut_sample(4, held, torch.Generator) is None
    assert found.cut_sample(3, Prepared(key, 20, 20), torch.Generator) is None
    assert found.key_to_cut(99) is None and found.key_to_cut("3") is None
    os.unlink(dataset.samples[3][0])
    assert found.cut_sample(3, held, torch.Generator) is None and found.key_to_cut(3) is None


def test_a_center_crop_is_cached_too(folder):
    loader = Loader(folder_of(folder, LISTS["nothing random"]), 4, cache="8 MiB")
    for _ in range(2):
        list(loader)
    assert loader.stats().cache.num_hits == loader.stats().cache.num_misses == NUM_FILES


def test_a_device_that_shares_the_hosts_memory_has_no_tier(monkeypatch):
    monkeypatch.setattr("hasten.devices.accelerator.has_streams", lambda device: False)
    assert device_tier.tier_for(None, torch.device("cpu")) is None


def test_without_a_device_there_is_no_tier(folder):
    loader = Loader(folder_of(folder), 4, cache="8 MiB")
    list(loader)
    assert [tier.name for tier in loader.stats().cache.tiers] == ["ram"]


# On the device


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("name", LISTS)
def test_batches_are_the_same_with_and_without_the_tier(folder, name, workers, seed):
    dataset = folder_of(folder, LISTS[name])
    expected = epochs_of(loader_of(dataset, seed=seed, **workers))
    loader = loader_of(dataset, seed=seed, cache="8 MiB", **workers)
    assert same(epochs_of(loader), expected)
    tier = tier_of(loader)
    assert tier.num_fills == NUM_FILES and tier.num_hits >= 4 and 0 < tier.num_bytes <= tier.budget
    assert [tier.name for tier in loader.stats().cache.tiers] == ["device", "ram"]


@pytest.mark.gpu
@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_batches_are_the_same_with_persistent_workers_and_replacement(folder, workers):
    dataset = folder_of(folder)
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=24)

    def found(**more):
        torch.manual_seed(3)
        stays = {"persistent_workers": True} if workers["num_workers"] else {}
        loader = Loader(dataset, 4, sampler=sampler, device="cuda", **stays, **workers, **more)
        return epochs_of(loader, 4), loader

    batches, loader = found(cache="8 MiB")
    assert same(batches, found()[0]) and tier_of(loader).num_hits >= 4


@pytest.mark.gpu
@pytest.mark.parametrize("pixels", ["identical", "close"])
def test_subsets_of_several_folders_are_cropped_on_the_device(folder, pixels):
    one, other = folder_of(folder), folder_of(folder, LISTS["crop and flip"])
    parts = ConcatDataset([Subset(one, [3, 1, 3, 8]), other, Subset(Subset(one, range(6)), [5, 0])])
    expected = epochs_of(loader_of(parts, pixels=pixels))
    loader = loader_of(parts, cache="8 MiB", pixels=pixels)
    assert same(epochs_of(loader), expected) and tier_of(loader).num_hits > 12


@pytest.mark.gpu
def test_subsets_with_different_scalings_or_sizes_are_built_the_usual_way(folder):
    other = [transforms.Resize(40), *CROPS, transforms.ToTensor()]
    parts = ConcatDataset([folder_of(folder), folder_of(folder, other)])
    loader = loader_of(parts, cache="8 MiB")
    found, expected = epochs_of(loader, 4), epochs_of(loader_of(parts), 4)
    assert all(torch.equal(one[1], two[1]) for one, two in zip(found, expected))
    assert all(torch.allclose(one[0], two[0], atol=1e-6) for one, two in zip(found, expected))


@pytest.mark.gpu
@pytest.mark.parametrize("name", OTHERS)
def test_other_transforms_are_built_the_usual_way(folder, name):
    dataset = folder_of(folder, OTHERS[name])
    expected = epochs_of(loader_of(dataset))
    loader = loader_of(dataset, cache="8 MiB")
    assert same(epochs_of(loader), expected)
    found = [tier.num_fills for tier in loader.stats().cache.tiers if tier.name == "device"]
    assert found in ([0], [])


def step_by_step(dataset, change, *, after, **arguments):
    """Run four epochs in which something changes, with and without the tier."""
    loaders = [
        loader_of(dataset, generator=torch.Generator().manual_seed(1), **arguments, **more)
        for more in ({}, {"cache": "8 MiB"})
    ]
    number, hits = 0, 0
    for epoch in range(4):
        iterators = [iter(loader) for loader in loaders]
        while True:
            pair = [next(iterator, None) for iterator in iterators]
            if pair[0] is None:
                assert pair[1] is None
                break
            assert same([on_host(pair[0])], [on_host(pair[1])]), (epoch, number)
            number += 1
            if number == after:
                hits = tier_of(loaders[1]).num_hits
                change()
    return loaders[1], hits


def other_file(dataset, index):
    path = dataset.samples[index][0]
    time.sleep(0.01)
    Image.fromarray(np.random.default_rng(99).integers(0, 256, (55, 64, 3), np.uint8)).save(path)


CHANGES = {
    "files": lambda dataset: [other_file(dataset, index) for index in range(NUM_FILES)],
    "one file": lambda dataset: other_file(dataset, 7),
    "list of files": lambda dataset: dataset.samples.__setitem__(slice(None), dataset.samples[::-1]),
    "transform": lambda dataset: setattr(
        dataset, "transform", transforms.Compose([transforms.Resize(44), *CROPS, *FLOATS])
    ),
    "option of the resize": lambda dataset: setattr(dataset.transform.transforms[0], "size", 36),
    "option of the flip": lambda dataset: setattr(dataset.transform.transforms[2], "p", 1.0),
    "size of the crop": lambda dataset: setattr(dataset.transform.transforms[1], "size", (20, 20)),
    "transform, by one that is not known": lambda dataset: setattr(
        dataset, "transform", transforms.Compose([transforms.Resize((32, 32)), transforms.Grayscale(3), *FLOATS])
    ),
    "labels": lambda dataset: setattr(dataset, "target_transform", lambda label: label + 100),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_within_an_epoch_takes_effect_at_once(folder, name):
    steps = [transforms.Resize(40), transforms.RandomCrop(32), transforms.RandomHorizontalFlip(), *FLOATS]
    dataset = folder_of(folder, steps)
    loader, hits = step_by_step(dataset, lambda: CHANGES[name](dataset), after=7)
    assert hits > 0
    if name == "one file":
        assert tier_of(loader).num_hits > hits and tier_of(loader).num_fills == NUM_FILES + 1


@pytest.mark.gpu
def test_workers_continue_with_their_copy_of_the_dataset(folder):
    dataset = folder_of(folder)
    arguments = WORKERS[2] | {"persistent_workers": True}

    def found(**more):
        loader = loader_of(dataset, **arguments, **more)
        before = epochs_of(loader, 3)
        dataset.transform.transforms[0].size = 36
        dataset.targets = [9] * NUM_FILES
        after = epochs_of(loader, 2)
        dataset.transform.transforms[0].size = 40
        return before + after, loader

    expected, _ = found()
    batches, loader = found(cache="8 MiB")
    assert same(batches, expected) and tier_of(loader).num_hits >= 24


@pytest.mark.gpu
def test_the_budget_is_respected_and_nothing_is_evicted(folder, monkeypatch):
    whole = loader_of(folder_of(folder), cache="8 MiB")
    epochs_of(whole)
    each = tier_of(whole).num_bytes / NUM_FILES
    dataset = folder_of(folder)
    monkeypatch.setattr("hasten.devices.accelerator.free_memory", lambda device: int(7.5 * each / 0.25))
    loader = loader_of(dataset, cache="8 MiB")
    batches = epochs_of(loader, 2)
    tier = tier_of(loader)
    assert 5 <= tier.num_fills < NUM_FILES and tier.num_bytes <= tier.budget == int(int(7.5 * each / 0.25) * 0.25)
    held = tier.num_fills, tier.num_bytes
    batches += epochs_of(loader, 6)
    assert (tier_of(loader).num_fills, tier_of(loader).num_bytes) == held
    assert same(batches, epochs_of(loader_of(dataset), 8))


@pytest.mark.gpu
def test_a_batch_is_built_on_the_device_only_if_all_its_images_are_cached(folder, monkeypatch):
    dataset = folder_of(folder)
    monkeypatch.setattr("hasten.devices.accelerator.free_memory", lambda device: 4 * 60_000)

    def found(**more):
        torch.manual_seed(1)
        loader = Loader(dataset, 4, device="cuda", **more)
        return epochs_of(loader, 3), loader

    expected, _ = found()
    batches, loader = found(cache="8 MiB")
    assert same(batches, expected)
    assert tier_of(loader).num_hits % 4 == 0 and 0 < tier_of(loader).num_hits < 2 * NUM_FILES


@pytest.mark.gpu
def test_a_device_that_runs_out_of_memory_takes_no_more(folder, monkeypatch):
    copied = device_tier.copied
    given = []

    def scarce(tensor, device, **arguments):
        given.append(tensor)
        if len(given) > 3:
            raise torch.OutOfMemoryError("there is none")
        return copied(tensor, device, **arguments)

    monkeypatch.setattr(device_tier, "copied", scarce)
    dataset = folder_of(folder)
    loader = loader_of(dataset, cache="8 MiB")
    assert same(epochs_of(loader, 3), epochs_of(loader_of(dataset), 3))
    assert tier_of(loader).num_fills == 3 and len(given) == 4


@pytest.mark.gpu
def test_filling_takes_at_most_a_fraction_of_a_step(folder, monkeypatch):
    monkeypatch.setattr(device_tier, "FILL_SHARE", 0.0)
    loader = loader_of(folder_of(folder), cache="8 MiB")
    list(loader)
    assert tier_of(loader).num_fills <= 2  # one after each step


@pytest.mark.gpu
def test_device_memory_is_released_with_the_dataset_and_the_loader(folder):
    gc.collect()
    before = torch.cuda.memory_allocated()
    dataset = folder_of(folder)
    loader = loader_of(dataset, cache="8 MiB")
    for batch in loader:
        del batch
    list(loader)
    gc.collect()
    assert torch.cuda.memory_allocated() > before + tier_of(loader).num_bytes // 2 > before
    del loader, dataset
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
def test_a_recreated_loader_finds_the_images_of_its_predecessor(folder, caplog):
    dataset = folder_of(folder)
    epochs_of(loader_of(dataset, cache="8 MiB"))
    os.rename(folder / "class0", folder / "gone")  # the links are new, the files are not
    os.rename(folder / "gone", folder / "class0")
    with caplog.at_level(logging.WARNING, "hasten"):
        loader = loader_of(dataset, cache="8 MiB", seed=5)
        found = epochs_of(loader, 2)
    assert same(found, epochs_of(loader_of(dataset, seed=5), 2))
    assert tier_of(loader).num_fills == NUM_FILES and tier_of(loader).num_hits > 16
    assert not caplog.records


@pytest.mark.gpu
@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_resuming_mid_epoch_works_with_the_tier(folder, workers):
    dataset = folder_of(folder)
    expected = epochs_of(loader_of(dataset, **workers), 3)
    loader = loader_of(dataset, cache="8 MiB", **workers)
    found, state = [], None
    for epoch in range(3):
        for number, batch in enumerate(loader):
            found.append(on_host(batch))
            if (epoch, number) == (2, 0):
                state = loader.state_dict()
                break
    assert tier_of(loader).num_hits > 0
    for again in (loader, loader_of(dataset, seed=77, cache="8 MiB"), loader_of(dataset, seed=78)):
        again.load_state_dict(state)
        assert same(found + [on_host(batch) for batch in again], expected)


@pytest.mark.gpu
def test_a_sample_that_cannot_be_built_any_more_raises_or_is_replaced(folder):
    dataset = folder_of(folder)
    path = Path(dataset.samples[4][0])
    data = path.read_bytes()

    def found(**more):
        path.write_bytes(data)
        loader = loader_of(dataset, on_error="replace", max_error_rate=1.0, **more)
        batches = epochs_of(loader, 3)
        path.unlink()
        return batches + epochs_of(loader, 2), loader

    expected, plain = found()
    batches, loader = found(cache="8 MiB")
    assert same(batches, expected) and tier_of(loader).num_hits > 0
    assert loader.stats().num_replaced == plain.stats().num_replaced == 2
    assert loader._state.counts.num_built == plain._state.counts.num_built
    with pytest.raises(FileNotFoundError):
        list(loader_of(dataset, cache="8 MiB"))


@pytest.mark.gpu
@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize(
    "of_label",
    [lambda label: label * 10, lambda label: f"number {label}", lambda label: torch.tensor([label, 0.5])],
    ids=["numbers", "words", "tensors"],
)
def test_labels_equal_the_datasets(folder, of_label, workers):
    dataset = folder_of(folder, target_transform=of_label)
    expected = epochs_of(loader_of(dataset, **workers))
    loader = loader_of(dataset, cache="8 MiB", **workers)
    found = epochs_of(loader)
    for one, other in zip(found, expected):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1]) if isinstance(one[1], torch.Tensor) else one[1] == other[1]
    are_rows = not isinstance(
        of_label(0), str
    )  # default_collate turns strings into a tuple, so they are collated by torch
    assert (tier_of(loader).num_hits >= 4) == are_rows


@pytest.mark.gpu
def test_random_labels_are_built_the_usual_way(folder):
    dataset = folder_of(folder, target_transform=lambda label: label + random.random())
    loader = loader_of(dataset, cache="8 MiB")
    epochs_of(loader, 4)
    assert tier_of(loader).num_hits == 0


@pytest.mark.gpu
def test_the_training_loop_may_modify_its_batches(folder):
    dataset = folder_of(folder, LISTS["nothing random"])
    expected = epochs_of(loader_of(dataset), 4)
    loader = loader_of(dataset, cache="8 MiB")
    found = []
    for _ in range(4):
        for batch in loader:
            found.append(on_host(batch))
            batch[0].zero_()
    assert same(found, expected) and tier_of(loader).num_hits >= 8
