"""Convert uint8 to normalized floats, once per image or batch, bit for bit as torchvision's transforms do."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scaling:
    """The conversion of a uint8 image to normalized floats: `(pixels / 255 - mean) / std`, per channel.

    `mean` and `std` are empty if nothing is normalized.
    """

    dtype: torch.dtype = torch.float32
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    reciprocal: bool = False
    """Multiply by 1/255, as torchvision's v2 does, instead of dividing by 255: the results differ in the last bit."""
    is_fused: bool = False
    """One multiply and one add instead of the separate operations: differs by at most 1e-6, in half the time."""


@dataclass(frozen=True)
class ScaledImage:
    """A leaf of a sample: a float image that is still stored as uint8.

    It is converted once: directly into a batch's row, or, with a device, on the device.
    """

    pixels: torch.Tensor
    """uint8, (C, H, W), with any strides."""
    scaling: Scaling


def scale(image: ScaledImage, out: torch.Tensor) -> None:
    """Write the image's normalized floats to `out`: float32, (channels, height, width), contiguous.

    Bit-identical to the transforms' result, unless the scaling is fused.
    """
    _scale_in_place(out.copy_(image.pixels), image.scaling)


def scale_batch(pixels: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """Return normalized floats for uint8 images (number, channels, height, width), contiguous, on the images' device."""
    floats = torch.empty(pixels.shape, dtype=scaling.dtype, device=pixels.device)
    return _scale_in_place(floats.copy_(pixels), scaling)


def _scale_in_place(floats: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    if scaling.is_fused:
        factor, offset = _fused(scaling, floats.device)
        return floats.mul_(factor).add_(offset) if scaling.mean else floats.mul_(factor)
    unit, mean, std = _steps(scaling, floats.device)
    floats = floats.mul_(unit) if scaling.reciprocal else floats.div_(unit)
    return floats.sub_(mean).div_(std) if scaling.mean else floats


@functools.lru_cache(maxsize=64)
def _steps(scaling: Scaling, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the divisor (or factor), and the mean and the standard deviation of each channel.

    All three are tensors: CUDA replaces division by a Python number with multiplication, which differs in the last bit.
    """
    unit = 1 / 255 if scaling.reciprocal else 255.0
    return _each([unit], scaling, device), _each(scaling.mean, scaling, device), _each(scaling.std, scaling, device)


@functools.lru_cache(maxsize=64)
def _fused(scaling: Scaling, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factor and the offset of each channel, computed in double precision."""
    factors = [1 / (255.0 * deviation) for deviation in scaling.std or (1.0,)]
    offsets = [-mean / deviation for mean, deviation in zip(scaling.mean, scaling.std)]
    return _each(factors, scaling, device), _each(offsets, scaling, device)


def _each(values: Sequence[float], scaling: Scaling, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=scaling.dtype, device=device).view(-1, 1, 1)
