"""Build samples of torchvision's image folders with hasten's decoder and transforms, with identical values.

Used only if every part is the library's own and known exactly: the class's `__getitem__`, its loader, each transform and its
options. The dataset is inspected for every sample, so a replaced or changed transform is noticed.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile
from torch.utils.data import ConcatDataset, Subset

from hasten.data.generators import preserve_generators
from hasten.data.images.decode import decoder_versions, read_image
from hasten.data.images.ops import Cut
from hasten.data.images.pipeline import ImagePipeline, compile_transforms
from hasten.data.images.pixels import PixelRule
from hasten.data.images.recognize import Unknown, flatten, options_of
from hasten.data.layout.scaling import Scaling
from hasten.data.layout.tree import with_floats
from hasten.data.memo.codec import decode
from hasten.data.memo.keys import identity_of_path, key_of, size_of
from hasten.data.memo.memo import current, get_or_compute

PILLOW_LOADERS = frozenset(("default_loader", "pil_loader"))
SEEDS = (0x5EED, 0xFEED5)


class NotKnownError(Exception):
    """This sample must be built by the dataset itself."""


@dataclass(frozen=True)
class Prepared:
    """A cached image, as it is before the random part of its transforms."""

    key: bytes
    height: int
    width: int


@dataclass(frozen=True)
class CutSample:
    """A sample whose image is still to be cropped from the prepared one and scaled."""

    cut: Cut
    scaling: Scaling
    label: Any


class FolderSamples:
    """Builds samples of the image folders in a dataset. Picklable together with it."""

    def __init__(self, dataset: Any, *, pixels: PixelRule) -> None:
        self.dataset = dataset
        self.pixels: PixelRule = pixels
        self._known: dict[int, tuple[object, ImagePipeline | None]] = {}
        self._current: dict[int, ImagePipeline | None] = {}

    def __getstate__(self) -> tuple[Any, PixelRule]:
        return self.dataset, self.pixels

    def __setstate__(self, state: tuple[Any, PixelRule]) -> None:
        self.__init__(state[0], pixels=state[1])

    def is_random(self) -> bool:
        """Whether building a sample draws from the generator."""
        return any(pipeline is not None and pipeline.draws for _, pipeline in self._known.values())

    def sample(
        self,
        index: Any,
        generator: Callable[[], torch.Generator],
        *,
        borrowed_checks: list[Callable[[], bool]] | None = None,
    ) -> tuple[Any, Any]:
        """Build a sample.

        Args:
            index: index of the sample.
            generator: called if random numbers are needed.
            borrowed_checks: receives, for a sample that is a view of the cache, a function to be called after copying the sample, which
                says whether the cache entry is unchanged; None: samples are never views of the cache.

        Raises:
            NotKnownError: if the sample must be built by the dataset, which also raises the sample's errors.
        """
        try:
            folder, at = locate(self.dataset, index)
            pipeline = self.pipeline_of(folder)
            if pipeline is None:
                raise NotKnownError
            path, target = folder.samples[at]
            made = pipeline.complete(
                self._prepared(path, pipeline, borrowed_checks), generator() if pipeline.draws else _no_generator()
            )
        except Exception as error:
            raise NotKnownError from error
        return made, target if folder.target_transform is None else folder.target_transform(target)

    def cut_sample(self, index: Any, held: Prepared, generator: Callable[[], torch.Generator]) -> CutSample | None:
        """Return the sample as a crop of a cached image; None if `sample` would use another image, or raise."""
        try:
            folder, at = locate(self.dataset, index)
            pipeline = self.pipeline_of(folder)
            path, target = folder.samples[at]
            if pipeline is None or pipeline.scaling is None or self._key(path, pipeline) != held.key:
                return None
            drawn = generator() if pipeline.draws else _no_generator()
            cut = pipeline.cut(held.height, held.width, drawn)
            label = target if folder.target_transform is None else folder.target_transform(target)
        except Exception:  # raised again where the sample is built
            return None
        return CutSample(cut, pipeline.scaling, label)

    def key_to_cut(self, index: Any) -> bytes | None:
        """Return the key of a sample's prepared image if the sample is only cropped from it; otherwise None."""
        try:
            folder, at = locate(self.dataset, index)
            pipeline = self.pipeline_of(folder)
            return self._key(folder.samples[at][0], pipeline) if pipeline is not None and pipeline.only_cuts else None
        except Exception:  # as above
            return None

    def _key(self, path: str, pipeline: ImagePipeline) -> bytes | None:
        identity = identity_of_path(path)
        return None if identity is None else self._key_of(identity, pipeline)

    def _key_of(self, identity: bytes, pipeline: ImagePipeline) -> bytes:
        truncated = b"truncated" if ImageFile.LOAD_TRUNCATED_IMAGES else b""
        return key_of(identity, b"image folder", _versions(), self.pixels.encode(), pipeline.fingerprint, truncated)

    def _prepared(
        self, path: str, pipeline: ImagePipeline, borrowed_checks: list[Callable[[], bool]] | None
    ) -> np.ndarray[Any, Any]:
        def prepare() -> np.ndarray[Any, Any]:
            return _dense(pipeline.prepare(read_image(path, keep_grey=True)), in_planes=pipeline.only_cuts)

        memo = current()
        identity = None if memo is None else identity_of_path(path)
        if memo is None or identity is None:
            return prepare()
        key = self._key_of(identity, pipeline)
        found = memo.view(key) if borrowed_checks is not None else None
        if found is not None and borrowed_checks is not None:
            memory, is_unchanged = found
            with contextlib.suppress(ValueError):  # released before it was read
                prepared = decode(memory, is_own=False)
                borrowed_checks.append(is_unchanged)
                return prepared
        return get_or_compute(
            key,
            prepare,
            is_unchanged=lambda: identity_of_path(path) == identity,
            source_bytes=size_of(identity),
        )

    def forget_transforms(self) -> None:
        """Discard what is known of the dataset's transforms; user code may have changed them since the last sample."""
        self._current.clear()

    def pipeline_of(self, folder: Any) -> ImagePipeline | None:
        """Return the pipeline of its transforms; None if they are not known, or it is not an image folder."""
        current = self._current.get(id(folder))  # in one look-up: another thread may clear it
        if current is not None and folder.target_transform is None:
            return current
        state = _state_of(folder)
        known = self._known.get(id(folder))
        if known is None or known[0] != state:
            known = self._known[id(folder)] = state, _checked(folder, self.pixels) if state is not None else None
        if known[1] is not None:
            self._current[id(folder)] = known[1]
        return known[1]


def _dense(image: np.ndarray[Any, Any], *, in_planes: bool) -> np.ndarray[Any, Any]:
    """Return a contiguous image, as the cache requires; with `in_planes`, channel by channel, like a batch."""
    planes = image if image.ndim == 2 else image.transpose(2, 0, 1)
    if in_planes:
        dense = np.ascontiguousarray(planes)
        return dense if image.ndim == 2 else dense.transpose(1, 2, 0)
    return image if image.flags.c_contiguous or planes.flags.c_contiguous else image.copy("K")


def folder_samples(dataset: Any, *, pixels: PixelRule) -> FolderSamples | None:
    """Return the builder for a dataset that is, or contains, image folders; None if none of them is known."""
    found = FolderSamples(dataset, pixels=pixels)
    known = [found.pipeline_of(folder) is not None for folder in _folders_in(dataset)]
    return found if any(known) else None


def is_threadable(dataset: Any) -> bool:
    """Whether every sample is built by thread-safe code."""
    return all(getattr(folder, "target_transform", False) is None for folder in _folders_in(dataset))


def locate(dataset: Any, index: Any) -> tuple[Any, int]:
    """Return a sample's folder and its index there. Raises NotKnownError, and what torch's classes raise."""
    if type(index) is not int and not isinstance(index, np.integer):
        raise NotKnownError
    at: Any = index
    while True:
        kind = type(dataset)
        if kind is Subset:
            dataset, at = dataset.dataset, dataset.indices[at]
        elif kind is ConcatDataset:
            if at < 0:
                if -at > len(dataset):
                    raise ValueError("absolute value of index should not exceed dataset length")  # as torch raises it
                at += len(dataset)
            number = bisect.bisect_right(dataset.cumulative_sizes, at)
            at -= dataset.cumulative_sizes[number - 1] if number else 0
            dataset = dataset.datasets[number]
        else:
            return dataset, at


def _folders_in(dataset: Any) -> list[Any]:
    if type(dataset) is Subset:
        return _folders_in(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return [folder for part in dataset.datasets for folder in _folders_in(part)]
    return [dataset]


def _state_of(folder: Any) -> object:
    """Return a value that changes if the folder would build other samples; None if they are not known."""
    module: Any = sys.modules.get("torchvision.datasets.folder")
    if module is None or not isinstance(folder, module.DatasetFolder) or not _is_unchanged(type(folder), module):
        return None
    held = vars(folder)
    transform, loader = held.get("transform"), held.get("loader")
    known = getattr(loader, "__globals__", None) is vars(module) and loader.__name__ in PILLOW_LOADERS
    if transform is None or not known or sys.modules["torchvision"].get_image_backend() != "PIL":
        return None
    try:
        flat = flatten([transform])
    except Unknown:
        return None
    return [(id(one), type(one), _plain(options_of(one))) for one in flat]


@functools.lru_cache(maxsize=64)
def _is_unchanged(kind: type, module: Any) -> bool:
    """Whether a class builds its samples as torchvision's DatasetFolder does."""
    theirs = {"torchvision", "torch", "typing", "builtins"}
    special = {
        "__getattribute__",
        "__getitem__",
        "__getitems__",
        "samples",
        "loader",
        "transform",
        "target_transform",
    }
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in theirs]
    return not any(special & vars(base).keys() for base in own)


def _plain(options: Any) -> list[tuple[str, object]]:
    return [(name, _value(value)) for name, value in options.items()]


def _value(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return tuple(map(_value, value))
    return value if isinstance(value, (str, int, float, bool, type(None))) else id(value)


def _checked(folder: Any, pixels: PixelRule) -> ImagePipeline | None:
    """Return the pipeline of a folder's transforms if it computes what they compute; otherwise None."""
    identical = compile_transforms([folder.transform], pixels="identical")
    if identical is None or not _is_pillow_unpatched() or not _agrees(folder.transform, identical):
        return None
    return identical if pixels == "identical" else compile_transforms([folder.transform], pixels=pixels)


def _agrees(transform: Any, pipeline: ImagePipeline) -> bool:
    """Whether this torchvision draws and computes what the pipeline does, tested on an image of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (301, 403, 3), np.uint8)
    try:
        with preserve_generators():
            for seed in SEEDS:
                torch.default_generator.manual_seed(seed)
                theirs = transform(Image.fromarray(noise))
                generator = torch.Generator().manual_seed(seed)
                ours = with_floats(pipeline.complete(pipeline.prepare(noise), generator))
                if type(theirs) is not type(ours) or theirs.dtype != ours.dtype or not torch.equal(theirs, ours):
                    return False
                if not torch.equal(generator.get_state(), torch.default_generator.get_state()):
                    return False
    except Exception:  # raised again where a sample is built
        return False
    return True


def _is_pillow_unpatched() -> bool:
    """Whether `Image.open` is Pillow's own function and not a replacement."""
    original: Any = Image.open
    while hasattr(original, "__wrapped__") and original.__module__ == "PIL.Image":
        original = original.__wrapped__
    return original.__code__.co_filename == Image.__file__


@functools.cache
def _versions() -> bytes:
    return decoder_versions()


@functools.cache
def _no_generator() -> torch.Generator:
    return torch.Generator()
