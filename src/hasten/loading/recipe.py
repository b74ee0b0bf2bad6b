"""How a sample is made, in two parts: what is the same every time, and what is drawn anew.

Plain nouns that the rest of the room speaks in. A dataset of which nothing is known is a recipe too: nothing of it
may be kept, and all of it may draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

PixelRule = Literal["identical", "close", "any"]
"""Which pixels an image may have: Pillow's own; within 1/255 of them; whatever is fastest to decode."""


class UnsplitError(Exception):
    """This sample is not made in two parts: `dataset[index]` is to make it; no user sees this."""


class Recipe(Protocol):
    """What makes a dataset's samples. Picklable wherever the dataset is."""

    keepable: bool
    """`prepare` gives the same bytes for an index every time, so they may be kept between epochs."""

    draws_globally: bool
    """`complete` may draw from the generators of torch, numpy and random, which must then be seeded before it."""

    draws_itself: bool
    """`complete` may draw from the generator that it is given, which must then be seeded before it."""

    threadable: bool
    """Both parts may run in several threads at once."""

    fingerprint: bytes
    """What `prepare` consists of, decoder versions included; another value means other prepared samples."""

    def prepare(self, index: Any) -> Any:
        """The part that draws nothing."""
        ...

    def complete(self, prepared: Any, generator: torch.Generator) -> Any:
        """The sample. It draws from `generator`, or from the global ones where `draws_globally`.

        `prepared` may be a view of a cache: it must not be written to. Raises UnsplitError where the dataset was
        not to be parted at this sample, or may have an answer to what its transforms raised.
        """
        ...

    def identity(self, index: Any) -> bytes | None:
        """What `prepare(index)` reads: path, size and time of change. None where that cannot be known."""
        ...


class Plain:
    """A dataset of which nothing is known: `dataset[index]` is the sample."""

    keepable = False
    draws_globally = True
    draws_itself = False
    threadable = False
    fingerprint = b""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def prepare(self, index: Any) -> Any:
        """The index itself."""
        return index

    def complete(self, prepared: Any, generator: torch.Generator) -> Any:
        """`dataset[index]`."""
        return self.dataset[prepared]

    def identity(self, index: Any) -> bytes | None:
        """Unknown."""
        return None


@dataclass(frozen=True)
class Scaling:
    """From uint8 to a normalised float image: `(pixels / 255 - mean) / std`, a channel at a time.

    `mean` and `std` are empty where nothing is normalised.
    """

    dtype: torch.dtype = torch.float32
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    reciprocal: bool = False
    """Multiplied by 1/255, as torchvision's v2 does, instead of divided by 255: they differ in the last bit."""
    is_fused: bool = False
    """One product and one sum in place of these steps: off by 1e-6 at most, in half the time."""


@dataclass(frozen=True)
class ScaledImage:
    """A leaf of a sample: a float image whose values are still uint8.

    The floats are made once: straight in a batch's row, or, where a device is at hand, there.
    """

    pixels: torch.Tensor
    """uint8, (C, H, W), of any strides."""
    scaling: Scaling
