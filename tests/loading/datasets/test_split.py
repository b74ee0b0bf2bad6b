"""A recipe makes the dataset's own samples, however its transforms are used."""

import contextlib
import random

import numpy as np
import pytest
import torch
from PIL import Image
from recipes import (
    Numbers,
    Photos,
    assert_kept,
    assert_not_kept,
    assert_same_samples,
    noisy,
    pixels_of,
    through_memory,
)

from hasten.loading.datasets.prefix import find_recipe
from hasten.loading.recipe import UnsplitError


class OwnGeneratorTransform:
    def __init__(self):
        self.source = np.random.default_rng(0)

    def __call__(self, x):
        return x * (-1 if self.source.random() < 0.5 else 1)


def close_over(source):
    return lambda x: x + source.random()


def test_a_transform_with_a_generator_of_its_own_is_put_off_and_its_generator_stays():
    transform = OwnGeneratorTransform()
    dataset = Numbers(transform)
    before = transform.source.bit_generator.state
    recipe = find_recipe(dataset)
    assert transform.source.bit_generator.state == before
    first = [recipe.complete(recipe.prepare(3), torch.Generator())[0].tolist() for _ in range(20)]
    transform.source.bit_generator.state = before
    assert [dataset[3][0].tolist() for _ in range(20)] == first


@pytest.mark.parametrize(
    ("source", "state"),
    [
        (random.Random(0), lambda source: source.getstate()),
        (np.random.default_rng(0), lambda source: source.bit_generator.state),
        (np.random.RandomState(0), lambda source: source.get_state(legacy=False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_closure_over_a_generator_is_put_off_and_its_generator_stays(source, state):
    before = repr(state(source))
    recipe = find_recipe(Numbers(close_over(source)))
    assert len(recipe.prepare(0).calls) == 1
    assert repr(state(source)) == before


def test_a_transform_whose_generator_has_no_state_is_left_alone():
    assert_not_kept(Numbers(close_over(random.SystemRandom())))


def negate_in_place(x):
    x *= -1 if random.random() < 2 else 1
    return x


class Copying(Numbers):
    def __getitem__(self, index):
        return self.transform(self.numbers[index].copy())


def test_a_transform_that_works_in_place_does_not_change_what_is_kept():
    recipe = find_recipe(Copying(negate_in_place))
    prepared = recipe.prepare(1)
    first = recipe.complete(prepared, torch.Generator()).tolist()
    second = recipe.complete(prepared, torch.Generator()).tolist()
    assert first == second == [-number for number in range(20, 40)]


def test_a_transform_that_works_in_place_on_the_dataset_itself_is_left_alone():
    assert assert_not_kept(Numbers(negate_in_place)) == "it changes when a sample is made"


class TwoViews(Numbers):
    def __getitem__(self, index):
        return [self.transform(self.numbers[index]), self.transform(self.numbers[index])], index


def test_two_views_draw_in_their_order():
    assert_kept(TwoViews(noisy))


class Chained(Numbers):
    def __init__(self):
        super().__init__(noisy)
        self.double = lambda x: x * 2
        self.to_tensor = torch.from_numpy

    def __getitem__(self, index):
        return self.to_tensor(self.double(self.transform(self.double(self.numbers[index]))))


def test_transforms_after_a_random_one_are_put_off_too():
    recipe = assert_kept(Chained())
    assert [call.attribute for call in recipe.prepare(0).calls] == ["transform", "double", "to_tensor"]


class WorkingOn(Numbers):
    def __getitem__(self, index):
        return super().__getitem__(index)[0] * 2


class Deciding(Numbers):
    def __getitem__(self, index):
        numbers, _ = super().__getitem__(index)
        return numbers if isinstance(numbers, np.ndarray) else None


class Catching(Numbers):
    def __getitem__(self, index):
        numbers, _ = super().__getitem__(index)
        with contextlib.suppress(Exception):
            numbers = numbers / 255
        return numbers


class Changing(Numbers):
    def __getitem__(self, index):
        numbers = self.numbers[index].copy()
        changed = self.transform(numbers)
        numbers += 1
        return changed, numbers


@pytest.mark.parametrize("kind", [WorkingOn, Deciding, Catching])
def test_a_dataset_that_works_on_what_a_random_transform_returns_is_left_as_it_is(kind):
    assert assert_not_kept(kind(noisy)) == "it works on what its transforms return"


@pytest.mark.parametrize("kind", [WorkingOn, Deciding, Catching])
def test_one_that_works_on_what_a_settled_transform_returns_is_kept(kind):
    assert_kept(kind(lambda x: x + 1))


def test_what_a_transform_is_given_is_noted_before_it_changes():
    assert_kept(Changing(noisy))


def test_a_sample_that_only_the_dataset_can_make_is_left_to_it():
    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 2:
                raise OSError("sample 2 is broken")
            return self.transform(self.numbers[index])

    def fussy(x):
        if x[0] == 80:
            raise ValueError
        return x + random.random()

    recipe = find_recipe(Broken(fussy))
    assert recipe.keepable
    for index in (2, 4):
        prepared = through_memory(recipe.prepare(index))
        with pytest.raises(UnsplitError):
            recipe.complete(prepared, torch.Generator())


def test_images_are_kept_before_a_random_function(files):
    def shift(image):
        return pixels_of(image).roll(random.randrange(9), 0)

    recipe = assert_kept(Photos(files, shift))
    (call,) = recipe.prepare(0).calls
    assert call.arguments[0].pixels.shape == (50, 60, 3)


def test_what_an_image_knows_beside_its_pixels_is_kept(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for number in range(3):
        Image.new("RGB", (4, 6), (number, 0, 0)).save(tmp_path / f"{number}.jpg", exif=exif)

    def turned(image):
        assert image.getexif()[0x0112] == 6
        return pixels_of(image) + random.randrange(3)

    assert_kept(Photos(sorted(map(str, tmp_path.glob("*.jpg"))), turned))


class Raw(Photos):
    def __getitem__(self, index):
        return self.transform(Image.open(self.files[index]))


def test_images_in_every_mode_come_back_as_they_were(tmp_path):
    for number, mode in enumerate(("RGB", "L", "P", "RGBA", "1", "I;16", "LA")):
        image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8)).convert("I" if mode == "I;16" else mode)
        image.convert(mode).save(tmp_path / f"{number}.png")
    dataset = Raw(
        sorted(map(str, tmp_path.glob("*.png"))), lambda image: (image.mode, np.array(image) + noisy(np.zeros(1)))
    )
    assert_not_kept(dataset)  # the function could ask the image for its file

    class Loaded(Raw):
        def __getitem__(self, index):
            return self.transform(Image.open(self.files[index]).copy())

    assert_kept(Loaded(dataset.files, dataset.transform))


class ForgivingOne(Photos):
    def __getitem__(self, index):
        image = Image.open(self.files[index])
        try:
            return self.transform(image if index == 2 else image.copy())
        except Exception:
            return "nothing"


def test_a_sample_that_cannot_be_kept_is_left_to_the_dataset(files):
    dataset = ForgivingOne(files, lambda image: np.array(image) * random.random())
    recipe = find_recipe(dataset)
    assert recipe.keepable
    with pytest.raises(UnsplitError):
        recipe.complete(recipe.prepare(2), torch.Generator())
    assert_same_samples(recipe, dataset, indices={*range(len(files))} - {2})
