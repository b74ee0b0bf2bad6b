"""Compile the transforms of an image dataset into a pipeline that draws what torchvision draws and skips unneeded work.

"identical" returns the transforms' own tensors, bit for bit. "close" resizes by a vectorized library; every value, before
normalization, is within 1/255 of theirs. "any" equals "close".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import numpy as np
import PIL
import torch

from hasten.data.images.ops import Cut, Op, RandomCrop, RandomFlip
from hasten.data.images.pixels import PixelRule, to_tensor
from hasten.data.images.recognize import Unknown, flatten, makes_float, only_retypes, op_of, scaling_of
from hasten.data.layout.scaling import ScaledImage, Scaling

CHANNELS = 3
_UNUSED = torch.Generator()
"""Passed to ops that draw nothing."""


@dataclass(frozen=True)
class ImagePipeline:
    """Transforms of RGB images, split into a fixed and a random part; picklable."""

    fixed: tuple[Op, ...]
    random: tuple[Op, ...]
    """Starts with the first op that draws."""
    scaling: Scaling | None
    """None if the transforms end in uint8."""
    fingerprint: bytes
    """Hash of the fixed part: a different value means different pixels."""

    @property
    def draws(self) -> bool:
        """Whether the random part draws anything."""
        return bool(self.random)

    @property
    def only_cuts(self) -> bool:
        """Whether the random part only crops and flips, and a conversion to floats follows."""
        kinds = all(
            isinstance(op, RandomFlip) or (isinstance(op, RandomCrop) and op.padding is None and not op.pad_if_needed)
            for op in self.random
        )
        return kinds and self.scaling is not None

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """Apply the fixed part.

        Args:
            image: uint8, (height, width, 3), or (height, width) for an image with equal channels.

        Returns:
            An image in the same format; it may be `image` itself or a view of it, with any strides.
        """
        return _applied(self.fixed, image, _UNUSED)

    def complete(self, image: np.ndarray, generator: torch.Generator) -> torch.Tensor | ScaledImage:
        """Apply the random part, with the draws that torchvision would make from a global generator in the same state.

        Returns:
            A ScaledImage, which may be a view of `image`; or a uint8 tensor (channels, height, width), which never is.
        """
        planes = to_tensor(_applied(self.random, image, generator))
        if planes.shape[0] != CHANNELS:
            planes = planes.expand(CHANNELS, -1, -1)
        if self.scaling is not None:
            return ScaledImage(planes, self.scaling)
        planes = planes.contiguous()
        return planes.clone() if np.may_share_memory(planes.numpy(), image) else planes

    def cut(self, height: int, width: int, generator: torch.Generator) -> Cut:
        """Return the region that `complete` takes of a prepared image of this size, with the same draws.

        Raises ValueError unless `only_cuts` is true, or if a crop does not fit.
        """
        found = Cut(0, 0, height, width)
        for op in self.random:
            if not isinstance(op, (RandomCrop, RandomFlip)):
                raise ValueError(f"{op} does more than crop and flip")
            found = op.cut(found, generator)
        return found


def _applied(ops: tuple[Op, ...], image: np.ndarray, generator: torch.Generator) -> np.ndarray:
    for op in ops:
        image = op(image, generator)
    return image


def compile_transforms(transforms: Sequence[object], *, pixels: PixelRule) -> ImagePipeline | None:
    """Compile the transforms into a pipeline.

    Args:
        transforms: applied in order to Pillow images in mode RGB; a Compose is flattened. The last must return a tensor,
            uint8 or float32.
        pixels: how close to Pillow's pixels the result has to be.

    Returns:
        The pipeline; None unless every transform is recognized exactly.
    """
    try:
        flat = flatten(transforms)
        num_pixel = next((place for place, one in enumerate(flat) if makes_float(one)), len(flat))
        found, tensor = _ops_of(flat[:num_pixel], pixels)
        scaling = scaling_of(flat[num_pixel:], tensor=tensor, channels=CHANNELS)
    except Unknown:
        return None
    if scaling is not None and pixels != "identical":
        scaling = replace(scaling, is_fused=True)
    first = next((place for place, op in enumerate(found) if op.draws), len(found))
    return ImagePipeline(tuple(found[:first]), tuple(found[first:]), scaling, _fingerprint(found[:first]))


def _ops_of(transforms: Sequence[object], pixels: PixelRule) -> tuple[list[Op], bool]:
    """Return the op of every transform that changes more than the type; and whether the result is a tensor."""
    found: list[Op] = []
    tensor = False
    for transform in transforms:
        if only_retypes(transform, tensor=tensor):
            tensor = True
        else:
            found.append(op_of(transform, tensor=tensor, pixels=pixels))
    return found, tensor


def _fingerprint(fixed: Sequence[Op]) -> bytes:
    versions = (PIL.__version__, torch.__version__, version("cykooz-resizer")) if fixed else ()
    return hashlib.sha256(repr((tuple(fixed), versions)).encode()).digest()
