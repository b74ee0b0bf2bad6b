"""Implementations of the recognized transforms, with the random numbers and the pixels of torchvision.

Draws use the same numbers in the same order, from a separate generator. For a single number, torch's `rand`, `uniform_` and
`randint` draw as `uniform_` and `random_` do. Dtype and device are explicit, because users may change torch's defaults.

Images have the format of `hasten.data.images.pixels`. A two-axis image stands for mode L, or for RGB with three equal
channels, which every op preserves. No op writes to its input.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import torch

from hasten.data.images.pixels import Resampling, to_tensor


class _Scratch(threading.local):
    """A thread's tensors to draw into: creating one for each draw would take longer than the draw."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # the first draw may happen in inference mode, and a later one outside it
            self.real = torch.empty(1, dtype=torch.float32, device="cpu")
            self.whole = torch.empty(1, dtype=torch.int64, device="cpu")


_scratch = _Scratch()


def draw_bernoulli(probability: float, *, generator: torch.Generator) -> bool:
    """Return `torch.rand(1) < probability`, for a probability rounded to float32."""
    return draw_uniform(0.0, 1.0, generator=generator) < probability


def draw_uniform(low: float, high: float, *, generator: torch.Generator) -> float:
    """Return `torch.empty(1).uniform_(low, high)`."""
    return _scratch.real.uniform_(low, high, generator=generator).item()


def draw_offset(room: int, *, generator: torch.Generator) -> int:
    """Return a random integer from 0 to `room`, inclusive."""
    return int(_scratch.whole.random_(0, room + 1, generator=generator).item())


def draw_resized_crop(
    height: int,
    width: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    log_ratio: tuple[float, float],
    generator: torch.Generator,
) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of RandomResizedCrop in an image of this size.

    `log_ratio` is the logarithm of `ratio` in float32. The ten tries and the central-crop fallback are those of
    torchvision's RandomResizedCrop.get_params.
    """
    for _ in range(10):
        tall, wide = draw_sides(height * width, scale, log_ratio, generator=generator)
        if 0 < wide <= width and 0 < tall <= height:
            top = draw_offset(height - tall, generator=generator)
            return top, draw_offset(width - wide, generator=generator), tall, wide
    tall, wide = height, width
    if width / height < min(ratio):
        tall = round(width / min(ratio))
    elif width / height > max(ratio):
        wide = round(height * max(ratio))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def draw_sides(
    area: int, scale: tuple[float, float], log_ratio: tuple[float, float], *, generator: torch.Generator
) -> tuple[int, int]:
    """Return (height, width) of a part of `area`: draws its fraction of the area first, then its width / height."""
    target = area * draw_uniform(*scale, generator=generator)
    # Compute the exponential in float32: its last bit occasionally decides how a length rounds.
    shape = _scratch.real.uniform_(*log_ratio, generator=generator).exp_().item()
    return round(math.sqrt(target / shape)), round(math.sqrt(target * shape))


Range = tuple[float, float]


@dataclass(frozen=True)
class Cut:
    """A region of an image, possibly flipped: the result of random crops and flips in sequence."""

    top: int
    left: int
    height: int
    width: int
    is_flipped: tuple[bool, bool] = (False, False)
    """Upside down, left to right."""

    def cropped(self, top: int, left: int, height: int, width: int) -> Cut:
        """Return a region of this region, in its flipped coordinates."""
        if self.is_flipped[0]:
            top = self.height - top - height
        if self.is_flipped[1]:
            left = self.width - left - width
        return Cut(self.top + top, self.left + left, height, width, self.is_flipped)

    def flipped(self, axis: int) -> Cut:
        """Return this region, flipped (once more) along `axis`."""
        down, across = self.is_flipped
        return replace(self, is_flipped=(down ^ (axis == 0), across ^ (axis == 1)))

    def of(self, planes: torch.Tensor) -> torch.Tensor:
        """Return this region of an image (channels, height, width) on any device; a view unless it is flipped."""
        part = planes[:, self.top : self.top + self.height, self.left : self.left + self.width]
        axes = [axis + 1 for axis in (0, 1) if self.is_flipped[axis]]
        return part.flip(axes) if axes else part


class Op(Protocol):
    """A transform of an image. Frozen, so that its repr describes it completely."""

    draws: ClassVar[bool]

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the transformed image; it may share memory with `image`."""
        ...


@dataclass(frozen=True)
class Resize:
    """Resize to (height, width), or the shorter side to one length, with the longer side at most `longest`."""

    draws: ClassVar[bool] = False
    size: tuple[int, ...]
    longest: int | None
    resampling: Resampling

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the resized image; `image` itself if it has that size already."""
        return self.resampling.resize(image, *self.target(*image.shape[:2]))

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) to which an image of this size is resized."""
        if len(self.size) == 2:
            return self.size[0], self.size[1]
        short, long = sorted((height, width))
        if self.size:
            new_short, new_long = self.size[0], int(self.size[0] * long / short)
            if self.longest is not None and new_long > self.longest:
                new_short, new_long = int(self.longest * new_short / new_long), self.longest
        else:
            assert self.longest is not None
            new_short, new_long = int(self.longest * short / long), self.longest
        return (new_long, new_short) if width <= height else (new_short, new_long)


@dataclass(frozen=True)
class Pad:
    """Add a border of one gray value."""

    draws: ClassVar[bool] = False
    left: int
    top: int
    right: int
    bottom: int
    fill: int

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the padded image; `image` itself if the border is empty."""
        return padded(image, self.left, self.top, self.right, self.bottom, self.fill)


@dataclass(frozen=True)
class CenterCrop:
    """Crop the center; parts outside the image are black."""

    draws: ClassVar[bool] = False
    height: int
    width: int

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the crop: a view, unless parts lie outside the image."""
        lacking_height = max(0, self.height - image.shape[0])
        lacking_width = max(0, self.width - image.shape[1])
        left, top = lacking_width // 2, lacking_height // 2
        image = padded(image, left, top, lacking_width - left, lacking_height - top, 0)
        top = round((image.shape[0] - self.height) / 2)
        left = round((image.shape[1] - self.width) / 2)
        return image[top : top + self.height, left : left + self.width]


@dataclass(frozen=True)
class RandomFlip:
    """Flip upside down (axis 0) or left to right (axis 1), with a probability."""

    draws: ClassVar[bool] = True
    axis: int
    probability: float

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the image, flipped or not. Draws one number."""
        if not draw_bernoulli(self.probability, generator=generator):
            return image
        # torch's flip is vectorized; a reversed NumPy view would have to be copied byte by byte later.
        flipped = to_tensor(image).flip(self.axis + 1).numpy()
        return flipped[0] if image.ndim == 2 else flipped.transpose(1, 2, 0)

    def cut(self, cut: Cut, generator: torch.Generator) -> Cut:
        """Apply the flip to a region of an image instead of to the image. Draws the same number."""
        return cut.flipped(self.axis) if draw_bernoulli(self.probability, generator=generator) else cut


@dataclass(frozen=True)
class RandomCrop:
    """Pad, then crop a region of one size at a random place."""

    draws: ClassVar[bool] = True
    height: int
    width: int
    padding: Pad | None
    pad_if_needed: bool
    fill: int
    draws_both: bool
    """Draw both coordinates unless the image fits exactly in both directions (v1), or only where there is room (v2)."""

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the crop: a view, unless padded. Draws at most two numbers; raises ValueError if it does not fit."""
        if self.padding is not None:
            image = self.padding(image, generator)
        if self.pad_if_needed:
            across = max(0, self.width - image.shape[1])
            along = max(0, self.height - image.shape[0])
            image = padded(image, across, along, across, along, self.fill)
        top, left = self._place(image.shape[0], image.shape[1], generator)
        return image[top : top + self.height, left : left + self.width]

    def cut(self, cut: Cut, generator: torch.Generator) -> Cut:
        """Apply the crop to a region of an image. Raises ValueError if it does not fit, or if the op pads."""
        if self.padding is not None or self.pad_if_needed:
            raise ValueError("a padded crop is not a region of the image")
        return cut.cropped(*self._place(cut.height, cut.width, generator), self.height, self.width)

    def _place(self, height: int, width: int, generator: torch.Generator) -> tuple[int, int]:
        """Return (top, left) in an image of this size."""
        if height < self.height or width < self.width:
            raise ValueError(
                f"a crop of {self.height} x {self.width} does not fit in {height} x {width} (height x width)"
            )
        room = (height - self.height, width - self.width)
        top, left = (
            draw_offset(space, generator=generator) if space or (self.draws_both and any(room)) else 0
            for space in room
        )
        return top, left


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crop a random region of random shape, then resize it to one size."""

    draws: ClassVar[bool] = True
    height: int
    width: int
    scale: Range
    ratio: Range
    log_ratio: Range
    resampling: Resampling

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the resized crop. Draws at least four numbers, unless ten tries fail."""
        top, left, height, width = draw_resized_crop(
            image.shape[0],
            image.shape[1],
            scale=self.scale,
            ratio=self.ratio,
            log_ratio=self.log_ratio,
            generator=generator,
        )
        return self.resampling.resize(image[top : top + height, left : left + width], self.height, self.width)


def padded(image: np.ndarray, left: int, top: int, right: int, bottom: int, fill: int) -> np.ndarray:
    """Return the image within a border of `fill`; `image` itself if the border has no width."""
    if not (left or top or right or bottom):
        return image
    height, width = image.shape[:2]
    canvas = np.full((top + height + bottom, left + width + right, *image.shape[2:]), fill, np.uint8)
    canvas[top : top + height, left : left + width] = image
    return canvas
