"""Erasing a rectangle of a float image, as torchvision's RandomErasing does at the end of a pipeline.

In: a float image and a generator. Out: the same image, now and then without a part. Refuses to know how it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hasten.loading.images.draws import draw_chance, draw_offset, draw_sides
from hasten.loading.images.known import Unknown, log_range, name_of, numbers_of, options_of, probability_of, range_of


@dataclass(frozen=True)
class RandomErasing:
    """A random rectangle is filled, now and then."""

    probability: float
    scale: tuple[float, float]
    log_ratio: tuple[float, float]
    values: tuple[float, ...] | None
    """One for each channel; None for normally distributed noise."""

    def erase(self, image: torch.Tensor, generator: torch.Generator) -> None:
        """Fill a part of `image`, float32 (channels, height, width), in place. Ten tries, then nothing is erased."""
        if not draw_chance(self.probability, generator=generator):
            return
        channels, height, width = image.shape
        for _ in range(10):
            wide, tall = draw_sides(height * width, self.scale, self.log_ratio, generator=generator)
            if tall < height and wide < width:
                fill = self._fill(channels, tall, wide, generator)
                top = draw_offset(height - tall, generator=generator)
                left = draw_offset(width - wide, generator=generator)
                image[:, top : top + tall, left : left + wide] = fill
                return

    def _fill(self, channels: int, height: int, width: int, generator: torch.Generator) -> torch.Tensor:
        if self.values is None:
            noise = torch.empty((channels, height, width), dtype=torch.float32, device="cpu")
            return noise.normal_(generator=generator)
        return torch.tensor(self.values, dtype=torch.float32, device="cpu").view(-1, 1, 1)


def erasing_of(transform: object, *, channels: int) -> RandomErasing | None:
    """The erasing that the transform is; None where it is another transform. Raises Unknown."""
    if name_of(transform) != "RandomErasing":
        return None
    options = options_of(transform)
    if {*options} - {"_log_ratio"} != {"p", "scale", "ratio", "value", "inplace"}:
        raise Unknown
    value = options["value"]
    if value is None or value == "random":  # v2 says the one, v1 the other
        values = None
    else:
        values = numbers_of([value] if isinstance(value, (int, float)) else value, channels)
    return RandomErasing(probability_of(options["p"]), range_of(options["scale"]), log_range(options), values)
