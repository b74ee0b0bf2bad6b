"""Image folders of torchvision, decoded and transformed by our own code.

In: a dataset. Out: its recipe, where every piece of it is known exactly; None otherwise. Refuses to import torchvision.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import numpy as np
import torch

from hasten.loading.datasets.survey import survey
from hasten.loading.images.decode import decoder_versions, read_image
from hasten.loading.images.pipeline import ImagePipeline, compile_transforms
from hasten.loading.recipe import PixelRule, ScaledImage

PILLOW_LOADERS = frozenset(("default_loader", "pil_loader"))


class FolderImages:
    """Image files with a number each, through an image pipeline."""

    keepable = True
    draws_globally = False
    threadable = True

    def __init__(self, dataset: Any, pipeline: ImagePipeline, *, fingerprint: bytes) -> None:
        self.samples: list[tuple[str, Any]] = dataset.samples
        self.target_transform = dataset.target_transform
        self.pipeline = pipeline
        self.fingerprint = fingerprint
        self.threadable = self.target_transform is None
        self.draws_itself = pipeline.draws

    def prepare(self, index: Any) -> tuple[np.ndarray[Any, Any], Any]:
        """The image as far as nothing is drawn, and its target."""
        path, target = self.samples[index]
        image = self.pipeline.prepare(read_image(path, keep_grey=True))
        return image, target if self.target_transform is None else self.target_transform(target)

    def complete(
        self, prepared: tuple[np.ndarray[Any, Any], Any], generator: torch.Generator
    ) -> tuple[torch.Tensor | ScaledImage, Any]:
        """The rest of the transforms."""
        image, target = prepared
        return self.pipeline.complete(image, generator), target

    def identity(self, index: Any) -> bytes | None:
        """Of the sample's file."""
        return identify_file(self.samples[index])


def find_folder(dataset: Any, *, pixels: PixelRule, versions: bytes) -> FolderImages | None:
    """The recipe of an ImageFolder, or of a dataset that inherits how it makes its samples."""
    if not reads_folder(dataset) or dataset.transform is None:
        return None
    pipeline = compile_transforms([dataset.transform], pixels=pixels)
    others = survey((dataset.samples, dataset.target_transform))
    if pipeline is None or others.doubts:
        return None
    parts = (b"folder", versions, pipeline.fingerprint, decoder_versions(), others.digest)
    return FolderImages(dataset, pipeline, fingerprint=hashlib.sha256(repr(parts).encode()).digest())


def reads_folder(dataset: Any) -> bool:
    """Whether a sample is made by torchvision's DatasetFolder from one file, which Pillow reads as RGB."""
    module: Any = sys.modules.get("torchvision.datasets.folder")
    kind = type(dataset)
    if module is None or not isinstance(dataset, module.DatasetFolder):
        return False
    theirs = {"torchvision", "torch", "typing", "builtins"}
    inheriting = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in theirs]
    special = {"__getattribute__", "samples", "loader", "transform", "target_transform"}
    if kind.__getitem__ is not module.DatasetFolder.__getitem__ or any(
        special & vars(base).keys() for base in inheriting
    ):
        return False
    loader: Any = vars(dataset).get("loader")
    known = getattr(loader, "__globals__", None) is vars(module) and loader.__name__ in PILLOW_LOADERS
    return known and sys.modules["torchvision"].get_image_backend() == "PIL"


def identify_file(sample: tuple[str, Any]) -> bytes | None:
    """Path, size and time of change of a file, and what else is known of the sample."""
    path, target = sample
    try:
        found = os.stat(path)
    except OSError:
        return None
    return repr((os.path.abspath(path), found.st_size, found.st_mtime_ns, target)).encode(errors="surrogatepass")
