"""The random numbers of torchvision's transforms, drawn from a generator of one's own.

In: the parameters of a transform and a generator. Out: what the transform would have drawn from the global generator
in the same state: the same calls of torch in the same order, of the same shapes. Refuses to know of pixels.

The type and the device are given each time, for a user may have changed torch's defaults.
"""

from __future__ import annotations

import math

import torch


def draw_chance(probability: float, *, generator: torch.Generator) -> bool:
    """`torch.rand(1) < probability`, for a probability that is a float32."""
    return torch.rand(1, generator=generator, dtype=torch.float32, device="cpu").item() < probability


def draw_uniform(low: float, high: float, *, generator: torch.Generator) -> float:
    """`torch.empty(1).uniform_(low, high)`."""
    return _drawn_uniform(low, high, generator).item()


def draw_offset(room: int, *, generator: torch.Generator) -> int:
    """A whole number from 0 to `room`, both included."""
    return int(torch.randint(0, room + 1, (1,), generator=generator, device="cpu").item())


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
    shape = _drawn_uniform(*log_ratio, generator).exp_().item()
    return round(math.sqrt(target / shape)), round(math.sqrt(target * shape))


def _drawn_uniform(low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    return torch.empty(1, dtype=torch.float32, device="cpu").uniform_(low, high, generator=generator)
