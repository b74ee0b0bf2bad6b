"""The transforms of an image dataset, as one pipeline that draws what torchvision draws and skips what it need not do.

In: torchvision's transform objects, and images as arrays. Out: an image's pixels, still uint8 where the transforms
would have made them float, and the function that makes them so. Refuses to know of files, samples and batches.

"identical" gives the tensors of the transforms themselves, to the bit. "close" resizes by torch instead of Pillow,
and every value, before it is normalised, lies within 1/255 of theirs; what a ColorJitter then does to that difference
is its own affair. "any" is "close".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import PIL
import torch

from hasten.loading.images.erasing import RandomErasing, erasing_of
from hasten.loading.images.known import Unknown, flatten, num_grey_channels, step_of
from hasten.loading.images.pixels import to_tensor
from hasten.loading.images.scaling import makes_float, only_retypes, scale, scaling_of
from hasten.loading.images.steps import Step
from hasten.loading.recipe import PixelRule, ScaledImage, Scaling

_UNUSED = torch.Generator()
"""For the steps that draw nothing."""


@dataclass(frozen=True)
class ImagePipeline:
    """A dataset's image transforms in two parts; picklable."""

    prepared: tuple[Step, ...]
    drawn: tuple[Step, ...]
    channels: int
    """Of the finished image: 1 or 3."""
    scaling: Scaling | None
    """None where the transforms end in uint8."""
    erasing: RandomErasing | None
    num_prepared: int
    """How many transforms of the flattened list the prepared part consists of."""
    fingerprint: bytes
    """Of the prepared part: another value means other pixels."""

    @property
    def draws(self) -> bool:
        """Whether the second part draws anything."""
        return bool(self.drawn) or self.erasing is not None

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """The transforms before the first that draws.

        `image` is uint8, (height, width, 3), or (height, width) for an image in mode L or one in mode RGB with equal
        channels; so is the result, which may be `image` itself or a view of it, of any strides.
        """
        return _applied(self.prepared, image, _UNUSED)

    def complete(self, image: np.ndarray, generator: torch.Generator) -> torch.Tensor | ScaledImage:
        """The other transforms. The same draws from `generator` as torchvision's from a global one in its state.

        A ScaledImage may be a view of `image`; a tensor (channels, height, width) never is. It is uint8, or float32
        where a part is erased, which only floats can say.
        """
        finished = _applied(self.drawn, image, generator)
        planes = to_tensor(finished)
        if planes.shape[0] != self.channels:
            planes = planes.expand(self.channels, -1, -1)
        if self.scaling is not None:
            scaled = ScaledImage(planes, self.scaling)
            return scaled if self.erasing is None else self._erased(scaled, self.erasing, generator)
        planes = planes.contiguous()
        return planes.clone() if np.may_share_memory(planes.numpy(), image) else planes

    @staticmethod
    def _erased(image: ScaledImage, erasing: RandomErasing, generator: torch.Generator) -> torch.Tensor:
        floats = torch.empty(image.pixels.shape, dtype=torch.float32, device="cpu")
        scale(image, floats)
        erasing.erase(floats, generator)
        return floats


def _applied(steps: tuple[Step, ...], image: np.ndarray, generator: torch.Generator) -> np.ndarray:
    for step in steps:
        image = step(image, generator)
    return image


def compile_transforms(
    transforms: Sequence[object], *, pixels: PixelRule, mode: Literal["RGB", "L"] = "RGB"
) -> ImagePipeline | None:
    """The transforms as a pipeline, or None unless every one of them is known exactly.

    `transforms` are applied in turn to Pillow images in `mode`; a Compose among them counts as what is in it. The
    last must leave a tensor, uint8 or float32.
    """
    try:
        flat = flatten(transforms)
        num_pixel = next((place for place, one in enumerate(flat) if makes_float(one)), len(flat))
        found, tensor = _steps_of(flat[:num_pixel], pixels)
        channels = _num_channels(flat[:num_pixel], 3 if mode == "RGB" else 1)
        erasing = erasing_of(flat[-1], channels=channels) if flat else None
        scaling = scaling_of(flat[num_pixel : len(flat) - (erasing is not None)], tensor=tensor, channels=channels)
    except Unknown:
        return None
    if scaling is not None and pixels != "identical":
        scaling = replace(scaling, is_fused=True)
    first = next((place for place, step in enumerate(found) if step is not None and step.draws), len(found))
    prepared = tuple(step for step in found[:first] if step is not None)
    drawn = tuple(step for step in found[first:] if step is not None)
    return ImagePipeline(prepared, drawn, channels, scaling, erasing, first, _fingerprint(prepared))


def _steps_of(transforms: Sequence[object], pixels: PixelRule) -> tuple[list[Step | None], bool]:
    """A step for every transform, None for one that only changes the type; and whether a tensor comes out."""
    found: list[Step | None] = []
    tensor = False
    for transform in transforms:
        retypes = only_retypes(transform, tensor=tensor)
        found.append(None if retypes else step_of(transform, tensor=tensor, pixels=pixels))
        tensor = tensor or retypes
    return found, tensor


def _num_channels(transforms: Sequence[object], num_channels: int) -> int:
    for transform in transforms:
        num_channels = num_grey_channels(transform) or num_channels
    return num_channels


def _fingerprint(prepared: tuple[Step, ...]) -> bytes:
    made_by = (PIL.__version__, torch.__version__) if prepared else ()
    return hashlib.sha256(repr((prepared, made_by)).encode()).digest()
