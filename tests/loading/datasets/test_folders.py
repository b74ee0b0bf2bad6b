"""Datasets of images: torchvision's own, and those that use its transforms."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from recipes import Photos, assert_kept, assert_not_kept, assert_same_samples, save_image
from torch.utils.data import Subset

from hasten.loading.datasets.prefix import Finder, find_recipe
from hasten.loading.memory.nest import finished


@pytest.fixture
def torchvision():
    return pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))


def random_transforms(module):
    return module.Compose(
        [
            module.Resize(40),
            module.CenterCrop(36),
            module.RandomCrop(32),
            module.RandomHorizontalFlip(),
            module.PILToTensor(),
            module.ConvertImageDtype(torch.float32),
        ]
    )


def test_an_image_folder_of_known_transforms_needs_no_global_generator(torchvision, folder):
    dataset = torchvision.datasets.ImageFolder(str(folder), random_transforms(torchvision.transforms))
    recipe = assert_kept(dataset)
    assert recipe.threadable
    assert not recipe.draws_globally
    assert max(recipe.prepare(1)[0].shape[:2]) == 36


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_option_of_a_random_transform_that_changes_is_heeded(torchvision, folder, version):
    module = torchvision.transforms if version == "v1" else pytest.importorskip("torchvision.transforms.v2")
    dataset = torchvision.datasets.ImageFolder(str(folder), random_transforms(module))
    finder = Finder(dataset)
    first = finder.find()
    dataset.transform.transforms[3].p = 1.0
    second = finder.find()
    assert second.fingerprint == first.fingerprint
    assert_same_samples(second, dataset)
    dataset.transform.transforms[1].size = (34, 34)
    third = finder.find()
    assert third.fingerprint != first.fingerprint
    assert_same_samples(third, dataset)


def test_an_image_folder_with_another_transform_keeps_what_comes_before_it(torchvision, folder):
    transforms = torchvision.transforms
    transform = transforms.Compose([transforms.Resize(40), transforms.RandomAffine(20), transforms.ToTensor()])
    recipe = assert_kept(torchvision.datasets.ImageFolder(str(folder), transform))
    (call,) = recipe.prepare(0).calls
    assert call.begun
    assert min(call.arguments[0].pixels.shape[:2]) == 40


def test_floats_are_made_after_keeping(torchvision, files):
    transforms = torchvision.transforms
    transform = transforms.Compose([transforms.Resize(40), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])])
    recipe = assert_kept(Photos(files, transform))
    assert not recipe.draws_globally
    assert recipe.prepare(0).calls[0].arguments[0].pixels.dtype == np.uint8


def test_tensors_of_torchvision_keep_their_class(torchvision, files):
    from torchvision.transforms import v2

    transform = v2.Compose([v2.ToImage(), v2.Resize(40, antialias=True), v2.RandomRotation(20)])
    recipe = assert_kept(Photos(files, transform))
    assert type(recipe.prepare(0).calls[0].arguments[0]).__name__ == "Image"


class Boxes(Photos):
    def __getitem__(self, index):
        from torchvision import tv_tensors

        image = Image.open(self.files[index]).convert("RGB")
        boxes = tv_tensors.BoundingBoxes([[1, 2, 30, 40]], format="XYXY", canvas_size=(50, 60))
        image, boxes = self.transform(image, boxes)
        return image, boxes


def test_a_transform_of_an_image_and_its_boxes_is_put_off(torchvision, files):
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomRotation(20), v2.PILToTensor()])
    assert_kept(Boxes(files, transform))


def test_a_loader_of_the_users_is_split_by_reading_it(torchvision, folder):
    transforms = random_transforms(torchvision.transforms)

    def load(path):
        return Image.open(path).convert("L")

    assert_kept(torchvision.datasets.DatasetFolder(str(folder), load, ("jpg",), transforms))

    def load_anew(path):
        return Image.open(path).convert("RGB" if random.random() < 0.99 else "L")

    recipe = find_recipe(torchvision.datasets.DatasetFolder(str(folder), load_anew, ("jpg",), transforms))
    assert [call.attribute for call in recipe.prepare(0).calls] == ["loader", "transform"]


def test_a_random_target_is_drawn_after_the_image(torchvision, folder):
    def target(label):
        return label + torch.randint(9, (1,)).item()

    dataset = torchvision.datasets.ImageFolder(
        str(folder), random_transforms(torchvision.transforms), target_transform=target
    )
    recipe = assert_kept(dataset)
    assert recipe.draws_globally


def test_a_settled_target_is_kept(torchvision, folder):
    recipe = assert_kept(
        torchvision.datasets.ImageFolder(
            str(folder), random_transforms(torchvision.transforms), target_transform=lambda label: label * 2
        )
    )
    assert not recipe.threadable


def test_a_subclass_counts_by_what_it_overrides(torchvision, folder):
    class Same(torchvision.datasets.ImageFolder):
        pass

    class Other(torchvision.datasets.ImageFolder):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image, label, self.samples[index][0]

    class Random(torchvision.datasets.ImageFolder):
        def __getitem__(self, index):
            return super().__getitem__(random.randrange(len(self)))

    transform = random_transforms(torchvision.transforms)
    assert assert_kept(Same(str(folder), transform)).threadable
    assert not assert_kept(Other(str(folder), transform)).threadable
    assert_not_kept(Random(str(folder), transform))


def test_a_file_that_changes_has_another_identity(torchvision, folder):
    dataset = torchvision.datasets.ImageFolder(str(folder), random_transforms(torchvision.transforms))
    for recipe in (find_recipe(dataset), find_recipe(Subset(dataset, range(3)))):
        before = [recipe.identity(index) for index in range(2)]
        save_image(dataset.samples[0][0], seed=recipe.fingerprint[0] + 99)
        assert recipe.identity(0) != before[0]
        assert recipe.identity(1) == before[1]


def test_close_pixels_are_another_recipe(torchvision, folder):
    dataset = torchvision.datasets.ImageFolder(str(folder), random_transforms(torchvision.transforms))
    identical, close = find_recipe(dataset), find_recipe(dataset, pixels="close")
    assert type(identical) is type(close)
    ours = finished(close.complete(close.prepare(0), torch.Generator().manual_seed(0)))[0]
    theirs = finished(identical.complete(identical.prepare(0), torch.Generator().manual_seed(0)))[0]
    assert (ours - theirs).abs().max() <= 1.001 / 255


def test_arrays_of_torchvision_are_split(torchvision):
    dataset = object.__new__(torchvision.datasets.CIFAR10)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    transform = torchvision.transforms.Compose(
        [torchvision.transforms.RandomCrop(32, padding=4), torchvision.transforms.ToTensor()]
    )
    vars(dataset).update(data=pixels, targets=[1, 2, 3, 4, 5], transform=transform, target_transform=None)
    assert_kept(dataset)


def test_albumentations_are_put_off(files):
    albumentations = pytest.importorskip("albumentations")

    class Augmented(Photos):
        def __getitem__(self, index):
            return self.transform(image=np.array(Image.open(self.files[index]).convert("RGB")))["image"]

    transform = albumentations.Compose([albumentations.Resize(32, 32), albumentations.HorizontalFlip(p=0.5)])
    dataset = Augmented(files, transform)
    recipe = find_recipe(dataset)
    transform.set_random_seed(7)
    expected = [dataset[index].tolist() for index in range(len(files))]
    transform.set_random_seed(7)
    found = [recipe.complete(recipe.prepare(index), torch.Generator()).tolist() for index in range(len(files))]
    assert recipe.keepable
    assert found == expected
