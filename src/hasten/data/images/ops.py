"""What each known transform draws and does to an image, with the random numbers and the pixels of torchvision.

Draws: the same numbers in the same order, from a generator of one's own. torch's `rand`, `uniform_` and `randint` draw a single
number as `uniform_` and `random_` do. The type and the device are given, for a user may have changed torch's defaults.

In and out: an image as `hasten.data.images.pixels` has it. An image of two axes stands for mode L, or for RGB with three
equal channels: every op gives equal channels for these. Nothing here writes to its input.
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
    """A thread's tensors to draw into: to make one for each draw takes longer than the draw."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # whoever draws first may be in it, and not all who draw later
            self.real = torch.empty(1, dtype=torch.float32, device="cpu")
            self.whole = torch.empty(1, dtype=torch.int64, device="cpu")


_scratch = _Scratch()


def draw_chance(probability: float, *, generator: torch.Generator) -> bool:
    """`torch.rand(1) < probability`, for a probability that is a float32."""
    return draw_uniform(0.0, 1.0, generator=generator) < probability


def draw_uniform(low: float, high: float, *, generator: torch.Generator) -> float:
    """`torch.empty(1).uniform_(low, high)`."""
    return _scratch.real.uniform_(low, high, generator=generator).item()


def draw_offset(room: int, *, generator: torch.Generator) -> int:
    """A whole number from 0 to `room`, both included."""
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
    """(top, left, height, width) of RandomResizedCrop in an image of this size.

    `log_ratio` is the logarithm of `ratio` in float32. The ten tries and the central crop after them are those of
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
    """(height, width) of a part of `area`: first its share of the area is drawn, then its width / height."""
    target = area * draw_uniform(*scale, generator=generator)
    # The exponential is float32's, whose last bit decides now and then on which side of a half a length falls.
    shape = _scratch.real.uniform_(*log_ratio, generator=generator).exp_().item()
    return round(math.sqrt(target / shape)), round(math.sqrt(target * shape))


Range = tuple[float, float]


@dataclass(frozen=True)
class Cut:
    """A part of an image, perhaps turned over: what random crops and flips, one after the other, come to."""

    top: int
    left: int
    height: int
    width: int
    is_flipped: tuple[bool, bool] = (False, False)
    """Upside down, left to right."""

    def cropped(self, top: int, left: int, height: int, width: int) -> Cut:
        """A part of this part as it looks."""
        if self.is_flipped[0]:
            top = self.height - top - height
        if self.is_flipped[1]:
            left = self.width - left - width
        return Cut(self.top + top, self.left + left, height, width, self.is_flipped)

    def flipped(self, axis: int) -> Cut:
        """This part, turned over (once more)."""
        down, across = self.is_flipped
        return replace(self, is_flipped=(down ^ (axis == 0), across ^ (axis == 1)))

    def of(self, planes: torch.Tensor) -> torch.Tensor:
        """The part of an image (channels, height, width), wherever that lies; a view, unless it is turned over."""
        part = planes[:, self.top : self.top + self.height, self.left : self.left + self.width]
        axes = [axis + 1 for axis in (0, 1) if self.is_flipped[axis]]
        return part.flip(axes) if axes else part


class Op(Protocol):
    """A transform of an image. Frozen, so that its representation says all there is to know."""

    draws: ClassVar[bool]

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """The transformed image; it may share memory with `image`."""
        ...


@dataclass(frozen=True)
class Resize:
    """To (height, width); or the shorter side to one length, but the longer to no more than `longest`."""

    draws: ClassVar[bool] = False
    size: tuple[int, ...]
    longest: int | None
    resampling: Resampling

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Resized, or itself."""
        return self.resampling.resize(image, *self.target(*image.shape[:2]))

    def target(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that an image of this size is brought to."""
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
    """A border of one grey."""

    draws: ClassVar[bool] = False
    left: int
    top: int
    right: int
    bottom: int
    fill: int

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Padded, or itself."""
        return padded(image, self.left, self.top, self.right, self.bottom, self.fill)


@dataclass(frozen=True)
class CenterCrop:
    """The middle; what is missing is black."""

    draws: ClassVar[bool] = False
    height: int
    width: int

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """A view, unless something is missing."""
        lacking_height = max(0, self.height - image.shape[0])
        lacking_width = max(0, self.width - image.shape[1])
        left, top = lacking_width // 2, lacking_height // 2
        image = padded(image, left, top, lacking_width - left, lacking_height - top, 0)
        top = round((image.shape[0] - self.height) / 2)
        left = round((image.shape[1] - self.width) / 2)
        return image[top : top + self.height, left : left + self.width]


@dataclass(frozen=True)
class RandomFlip:
    """Upside down (axis 0) or left to right (axis 1), now and then."""

    draws: ClassVar[bool] = True
    axis: int
    probability: float

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Draws one number."""
        if not draw_chance(self.probability, generator=generator):
            return image
        # torch's flip is vectorized, numpy's reversed view has to be copied byte by byte later on.
        flipped = to_tensor(image).flip(self.axis + 1).numpy()
        return flipped[0] if image.ndim == 2 else flipped.transpose(1, 2, 0)

    def cut(self, cut: Cut, generator: torch.Generator) -> Cut:
        """The same of a part of an image that is not at hand."""
        return cut.flipped(self.axis) if draw_chance(self.probability, generator=generator) else cut


@dataclass(frozen=True)
class RandomCrop:
    """A part of one size at a random place, after padding."""

    draws: ClassVar[bool] = True
    height: int
    width: int
    padding: Pad | None
    pad_if_needed: bool
    fill: int
    draws_both: bool
    """Both places are drawn unless the image fits in both directions (v1), or only where there is room (v2)."""

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """A view, unless it is padded. Draws no more than two numbers; raises ValueError."""
        if self.padding is not None:
            image = self.padding(image, generator)
        if self.pad_if_needed:
            across = max(0, self.width - image.shape[1])
            along = max(0, self.height - image.shape[0])
            image = padded(image, across, along, across, along, self.fill)
        top, left = self._place(image.shape[0], image.shape[1], generator)
        return image[top : top + self.height, left : left + self.width]

    def cut(self, cut: Cut, generator: torch.Generator) -> Cut:
        """The same of a part of an image that is not at hand. Raises ValueError where it would be padded, too."""
        if self.padding is not None or self.pad_if_needed:
            raise ValueError("what is padded is no part of the image")
        return cut.cropped(*self._place(cut.height, cut.width, generator), self.height, self.width)

    def _place(self, height: int, width: int, generator: torch.Generator) -> tuple[int, int]:
        """(top, left) in an image of this size."""
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
    """A random part of random shape, brought to one size."""

    draws: ClassVar[bool] = True
    height: int
    width: int
    scale: Range
    ratio: Range
    log_ratio: Range
    resampling: Resampling

    def __call__(self, image: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Draws at least four numbers, unless ten tries fail."""
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
    """The image within a border of `fill`; itself where the border has no width."""
    if not (left or top or right or bottom):
        return image
    height, width = image.shape[:2]
    canvas = np.full((top + height + bottom, left + width + right, *image.shape[2:]), fill, np.uint8)
    canvas[top : top + height, left : left + width] = image
    return canvas
