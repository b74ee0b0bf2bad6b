"""Where a dataset's deterministic part ends and its random part begins.

In: any dataset with numbered samples. Out: the recipe that makes its samples in two parts, the first of which may be
kept between epochs. Refuses to know where it is kept.

A recipe is found by reading, not by trust: `survey.py` looks through the dataset and its code, the transforms that it
doubts are put off, and what is left is watched while it makes a few samples. Whatever is in doubt is not kept.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import platform
import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import PIL
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from hasten.loading.datasets.folders import find_folder, identify_file, reads_folder
from hasten.loading.datasets.split import Split, Steps, has_twin
from hasten.loading.datasets.survey import survey
from hasten.loading.datasets.trusted import ENLARGING
from hasten.loading.datasets.watching import why_not
from hasten.loading.images.known import Unknown, flatten, name_of
from hasten.loading.recipe import PixelRule, Plain, Recipe

FORMAT = 3
"""Of what recipes prepare. A new number, and what an earlier hasten kept on disk is not used any more."""


def find_recipe(dataset: Dataset[Any], *, pixels: PixelRule = "identical") -> Recipe:
    """How the dataset's samples are made, in two parts; Plain where that is not certain.

    Samples are the dataset's own to the bit; those of image folders, where `pixels` says so, to within 1/255. A few
    samples are made to make sure, with copies of the dataset's transforms, so that no generator moves.
    """
    return Finder(dataset, pixels=pixels).find()


class Finder:
    """Finds a dataset's recipe, anew whenever the dataset has changed: ask it when an epoch begins.

    The recipe may then be another one. What was kept of the old one is still good if the fingerprint is the same.
    """

    def __init__(
        self, dataset: Dataset[Any], *, pixels: PixelRule = "identical", is_for_keeping: bool = True
    ) -> None:
        self._dataset = dataset
        self._pixels: PixelRule = pixels
        self._is_for_keeping = is_for_keeping  # to split a sample costs something, and pays only where a part is kept
        self._digest = b""
        self._recipe: Recipe = Plain(dataset)
        self.reason: str | None = None
        """Why nothing of the samples may be kept; None where something may."""

    def find(self) -> Recipe:
        """The recipe for the epoch that begins."""
        seen = survey(self._dataset)
        digest = seen.digest + _versions()
        if digest != self._digest or not seen.is_complete:
            self._digest = digest
            found = _find(self._dataset, self._pixels, self._is_for_keeping)
            self.reason = found if isinstance(found, str) else None
            self._recipe = Plain(self._dataset) if isinstance(found, str) else found
        return self._recipe


class Picked:
    """Some of a dataset's samples: `torch.utils.data.Subset`."""

    def __init__(self, recipe: Recipe, indices: Any) -> None:
        self.recipe = recipe
        self.indices = indices
        self.keepable = recipe.keepable
        self.draws_globally = recipe.draws_globally
        self.draws_itself = recipe.draws_itself
        self.threadable = recipe.threadable
        self.fingerprint = _mixed(b"picked", recipe.fingerprint, survey(indices).digest)

    def prepare(self, index: Any) -> Any:
        """That of the sample that is meant."""
        return self.recipe.prepare(self.indices[index])

    def complete(self, prepared: Any, generator: torch.Generator) -> Any:
        """The same."""
        return self.recipe.complete(prepared, generator)

    def identity(self, index: Any) -> bytes | None:
        """The same."""
        return self.recipe.identity(self.indices[index])


class Joined:
    """One dataset after the other: `torch.utils.data.ConcatDataset`."""

    def __init__(self, recipes: list[Recipe], lengths: list[int]) -> None:
        self.recipes = recipes
        self.ends = list(accumulate(lengths))
        # To keep what a Plain recipe prepares, the index, does no harm.
        self.keepable = any(recipe.keepable for recipe in recipes)
        self.draws_globally = any(recipe.draws_globally for recipe in recipes)
        self.draws_itself = any(recipe.draws_itself for recipe in recipes)
        self.threadable = all(recipe.threadable for recipe in recipes)
        self.fingerprint = _mixed(b"joined", repr(self.ends).encode(), *(recipe.fingerprint for recipe in recipes))

    def prepare(self, index: Any) -> tuple[int, Any]:
        """Which recipe, and what it prepares."""
        number, inner = self._find(index)
        return number, self.recipes[number].prepare(inner)

    def complete(self, prepared: tuple[int, Any], generator: torch.Generator) -> Any:
        """By the same recipe."""
        number, value = prepared
        return self.recipes[number].complete(value, generator)

    def identity(self, index: Any) -> bytes | None:
        """By the same recipe."""
        number, inner = self._find(index)
        return self.recipes[number].identity(inner)

    def _find(self, index: Any) -> tuple[int, Any]:
        if index < 0:
            if -index > self.ends[-1]:
                raise ValueError("absolute value of index should not exceed dataset length")  # torch's own words
            index += self.ends[-1]
        number = bisect.bisect_right(self.ends, index)
        return number, index - (self.ends[number - 1] if number else 0)


def _find(dataset: Any, pixels: PixelRule, is_for_keeping: bool) -> Recipe | str:
    """The recipe, or why there is none but Plain."""
    kind = type(dataset)
    if isinstance(dataset, IterableDataset) or not (hasattr(kind, "__getitem__") and hasattr(kind, "__len__")):
        return "its samples have no numbers"
    if kind is Subset:
        found = _find(dataset.dataset, pixels, is_for_keeping)
        return found if isinstance(found, str) else Picked(found, dataset.indices)
    if kind is ConcatDataset:
        return _find_joined(dataset, pixels, is_for_keeping)
    if kind is TensorDataset:
        return "its samples are in memory as they are"
    if hasattr(dataset, "__getitems__"):
        return "it makes all samples of a batch at once"
    folder = _find_folder(dataset, pixels)
    if folder is not None or not is_for_keeping:
        return folder or "nothing is to be kept of it"
    return _find_split(dataset)


def _find_joined(dataset: ConcatDataset[Any], pixels: PixelRule, is_for_keeping: bool) -> Recipe | str:
    parts: list[Any] = dataset.datasets
    found = [_find(part, pixels, is_for_keeping) for part in parts]
    recipes = [Plain(part) if isinstance(one, str) else one for part, one in zip(parts, found)]
    joined = Joined(recipes, [len(part) for part in parts])
    if not joined.keepable or joined.ends != dataset.cumulative_sizes:
        return next((one for one in found if isinstance(one, str)), "its parts have changed their lengths")
    return joined


def _find_folder(dataset: Any, pixels: PixelRule) -> Recipe | None:
    identical = find_folder(dataset, pixels="identical", versions=_versions())
    if identical is None or not len(dataset):
        return None
    # Whether this torchvision draws and computes what we do shows in pixels that have to be the same.
    if why_not(lambda: (dataset.__getitem__, identical), num_samples=len(dataset)) is not None:
        return None
    return identical if pixels == "identical" else find_folder(dataset, pixels=pixels, versions=_versions())


def _find_split(dataset: Any) -> Recipe | str:
    if not has_twin(dataset):
        return "objects of its class cannot be copied attribute by attribute"
    if not len(dataset):
        return "it is empty"
    transforms = _transforms_of(dataset)
    before = survey(dataset, without=transforms)
    if before.doubts:
        return before.doubts[0]
    generators = survey(list(transforms.values())).generators
    # First what keeps the samples small. Where the dataset works on what a settled transform returns, it is not put off.
    reason = None
    for is_small in (True, False):
        steps = {name: _steps_of(one, is_small=is_small) for name, one in transforms.items()}
        put_off = {name: one for name, one in steps.items() if is_small or one.rest}
        recipe = Split(dataset, put_off, fingerprint=_fingerprint(dataset, put_off), identify=_identify(dataset))
        fresh = functools.partial(_for_trial, recipe)
        failed = why_not(fresh, num_samples=len(dataset), generators=generators)
        if survey(dataset, without=transforms).digest != before.digest:
            return "it changes when a sample is made"
        if failed is None:
            return recipe
        reason = reason or failed
    return reason or ""


def _for_trial(recipe: Split) -> tuple[Callable[[Any], Any], Recipe]:
    return recipe.for_trial().dataset.__getitem__, recipe.for_trial()


def _fingerprint(dataset: Any, transforms: dict[str, Steps]) -> bytes:
    """Of what is done before the transforms that are put off, and of their settled steps."""
    settled = [(name, steps.settled, steps.rest == ()) for name, steps in transforms.items()]
    digests = (survey(dataset, without=transforms).digest, survey(settled).digest)
    return _mixed(b"split", _versions(), *digests)


def _transforms_of(dataset: Any) -> dict[str, Any]:
    """The attributes of a dataset that can be called."""
    return {name: one for name, one in vars(dataset).items() if callable(one) and not isinstance(one, type)}


def _steps_of(transform: Any, *, is_small: bool) -> Steps:
    try:
        flat: list[Any] = list(flatten([transform]))
    except Unknown:
        flat = [transform]
    num_settled = next((place for place, step in enumerate(flat) if survey(step).doubts), len(flat))
    draws = num_settled < len(flat)
    while is_small and num_settled and name_of(flat[num_settled - 1]) in ENLARGING:
        num_settled -= 1
    rest = tuple(flat[num_settled:])
    any_image = all(name_of(step) is not None for step in rest)
    return Steps(whole=transform, settled=tuple(flat[:num_settled]), rest=rest, draws=draws, any_image=any_image)


def _identify(dataset: Any) -> Callable[[Any], bytes | None] | None:
    return functools.partial(_identify_at, dataset.samples) if reads_folder(dataset) else None


def _identify_at(samples: list[tuple[str, Any]], index: Any) -> bytes | None:
    return identify_file(samples[index])


def _versions() -> bytes:
    """Of what the samples depend on beside the dataset."""
    torchvision: Any = sys.modules.get("torchvision")
    backend = None if torchvision is None else (torchvision.__version__, torchvision.get_image_backend())
    libraries = (torch.__version__, np.__version__, PIL.__version__, platform.python_version())
    return repr((FORMAT, libraries, backend, torch.get_default_dtype())).encode()


def _mixed(*parts: bytes) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()
