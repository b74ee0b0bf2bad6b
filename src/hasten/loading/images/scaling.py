"""From uint8 to normalised floats: how the transforms ask for it, and the doing of it, once for each image or batch.

In: the transforms that end a pipeline; pixels. Out: a Scaling; floats, bit for bit those of the transforms. Refuses
to know how the pixels were made.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from hasten.loading.images.known import Unknown, is_v2, name_of, numbers_of, options_of
from hasten.loading.recipe import ScaledImage, Scaling


def only_retypes(transform: object, *, tensor: bool) -> bool:
    """Whether the transform turns Pillow's image into a uint8 tensor, or a tensor into the like."""
    name, options = name_of(transform), options_of(transform)
    if tensor:
        to_uint8 = name == "ToDtype" and options == {"dtype": torch.uint8, "scale": options.get("scale")}
        return to_uint8 or (name == "ToPureTensor" and not options)
    return name in ("ToImage", "PILToTensor") and not options


def makes_float(transform: object) -> bool:
    """Whether the transform is one that turns an image into floats between 0 and 1."""
    name, options = name_of(transform), options_of(transform)
    return name in ("ToTensor", "ConvertImageDtype") or (
        name == "ToDtype" and options.get("dtype") is not torch.uint8
    )


def scaling_of(transforms: Sequence[object], *, tensor: bool, channels: int) -> Scaling | None:
    """What the transforms from the first that makes floats on do to an image that is a tensor, or else Pillow's.

    None where there are none, and the image stays uint8. Raises Unknown.
    """
    rest = [transform for transform in transforms if name_of(transform) != "ToPureTensor"]
    if not rest and tensor:
        return None
    if not rest or torch.get_default_dtype() is not torch.float32:
        raise Unknown
    options = dict(options_of(rest[0]))
    if name_of(rest[0]) == "ToTensor" and not tensor and not options:
        reciprocal = False
    elif tensor and options.pop("scale", True) is True and options == {"dtype": torch.float32}:
        reciprocal = is_v2(rest[0])
    else:
        raise Unknown
    if len(rest) == 1:
        return Scaling(reciprocal=reciprocal)
    options = options_of(rest[1])
    if len(rest) > 2 or name_of(rest[1]) != "Normalize" or {*options} != {"mean", "std", "inplace"}:
        raise Unknown
    std = numbers_of(options["std"], channels)
    if not all(std):
        raise Unknown
    return Scaling(mean=numbers_of(options["mean"], channels), std=std, reciprocal=reciprocal)


def scale(image: ScaledImage, out: torch.Tensor) -> None:
    """Write the image's floats, normalised, to `out`: float32, (channels, height, width), contiguous.

    Bit for bit what the transforms give, unless the scaling is fused.
    """
    _scale_in_place(out.copy_(image.pixels), image.scaling)


def scale_batch(pixels: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """The normalised floats of uint8 images (number, channels, height, width), contiguous, on the images' device."""
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
    """What the values are divided by (or multiplied by), the mean and the deviation of each channel.

    Tensors all three: CUDA replaces the division by a Python number with a product, which differs in the last bit.
    """
    unit = 1 / 255 if scaling.reciprocal else 255.0
    return _each([unit], scaling, device), _each(scaling.mean, scaling, device), _each(scaling.std, scaling, device)


@functools.lru_cache(maxsize=64)
def _fused(scaling: Scaling, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor and the offset of each channel, worked out in double precision."""
    factors = [1 / (255.0 * deviation) for deviation in scaling.std or (1.0,)]
    offsets = [-mean / deviation for mean, deviation in zip(scaling.mean, scaling.std)]
    return _each(factors, scaling, device), _each(offsets, scaling, device)


def _each(values: Sequence[float], scaling: Scaling, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=scaling.dtype, device=device).view(-1, 1, 1)
