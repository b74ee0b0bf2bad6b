"""The transforms of an image dataset, as one pipeline that draws what torchvision draws and skips what it need not do.

"identical" gives the tensors of the transforms themselves, to the bit. "close" resizes by torch instead of Pillow, and every
value, before it is normalized, lies within 1/255 of theirs. "any" is "close".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import PIL
import torch

from hasten.data.images.ops import Cut, Op, RandomCrop, RandomFlip
from hasten.data.images.pixels import PixelRule, to_tensor
from hasten.data.images.recognize import Unknown, flatten, makes_float, only_retypes, op_of, scaling_of
from hasten.data.layout.scaling import ScaledImage, Scaling

CHANNELS = 3
_UNUSED = torch.Generator()
"""For the ops that draw nothing."""


@dataclass(frozen=True)
class ImagePipeline:
    """Transforms of RGB images in two parts; picklable."""

    fixed: tuple[Op, ...]
    random: tuple[Op, ...]
    """From the first op that draws on."""
    scaling: Scaling | None
    """None where the transforms end in uint8."""
    fingerprint: bytes
    """Of the fixed part: another value means other pixels."""

    @property
    def draws(self) -> bool:
        """Whether the second part draws anything."""
        return bool(self.random)

    @property
    def only_cuts(self) -> bool:
        """Whether the second part does nothing but take a part of the image and turn it over, and floats come after it."""
        kinds = all(
            isinstance(op, RandomFlip) or (isinstance(op, RandomCrop) and op.padding is None and not op.pad_if_needed)
            for op in self.random
        )
        return kinds and self.scaling is not None

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """The ops before the first that draws.

        `image` is uint8, (height, width, 3), or (height, width) for an image with equal channels; so is the result, which
        may be `image` itself or a view of it, of any strides.
        """
        return _applied(self.fixed, image, _UNUSED)

    def complete(self, image: np.ndarray, generator: torch.Generator) -> torch.Tensor | ScaledImage:
        """The other ops. The same draws from `generator` as torchvision's from a global one in its state.

        A ScaledImage may be a view of `image`; a tensor (channels, height, width), uint8, never is.
        """
        planes = to_tensor(_applied(self.random, image, generator))
        if planes.shape[0] != CHANNELS:
            planes = planes.expand(CHANNELS, -1, -1)
        if self.scaling is not None:
            return ScaledImage(planes, self.scaling)
        planes = planes.contiguous()
        return planes.clone() if np.may_share_memory(planes.numpy(), image) else planes

    def cut(self, height: int, width: int, generator: torch.Generator) -> Cut:
        """What `complete` takes of a prepared image of this size, with the same draws.

        Raises ValueError unless it `only_cuts`, and where a crop does not fit.
        """
        found = Cut(0, 0, height, width)
        for op in self.random:
            if not isinstance(op, (RandomCrop, RandomFlip)):
                raise ValueError(f"{op} does more than to cut")
            found = op.cut(found, generator)
        return found


def _applied(ops: tuple[Op, ...], image: np.ndarray, generator: torch.Generator) -> np.ndarray:
    for op in ops:
        image = op(image, generator)
    return image


def compile_transforms(transforms: Sequence[object], *, pixels: PixelRule) -> ImagePipeline | None:
    """The transforms as a pipeline, or None unless every one of them is known exactly.

    `transforms` are applied in turn to Pillow images in mode RGB; a Compose among them counts as what is in it. The last
    must leave a tensor, uint8 or float32.
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
    """The op of every transform that does not only change the type; and whether a tensor comes out."""
    found: list[Op] = []
    tensor = False
    for transform in transforms:
        if only_retypes(transform, tensor=tensor):
            tensor = True
        else:
            found.append(op_of(transform, tensor=tensor, pixels=pixels))
    return found, tensor


def _fingerprint(fixed: Sequence[Op]) -> bytes:
    made_by = (PIL.__version__, torch.__version__) if fixed else ()
    return hashlib.sha256(repr((tuple(fixed), made_by)).encode()).digest()
