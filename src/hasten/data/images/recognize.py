"""Recognize torchvision's transforms and translate them into ops.

A transform is recognized only if its class, all of its attributes and their values are known. torchvision is not imported: a
class is recognized by the module that it names, if that module holds this very class. A subclass, a hook on the module, or an
option added by a newer torchvision makes a transform unrecognized.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

import numpy as np
import torch
from PIL import Image

from hasten.data.images import ops
from hasten.data.images.pixels import Filter, PixelRule, Resampling, torch_resizes_uint8
from hasten.data.layout.scaling import Scaling

Options = Mapping[str, object]

_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_DERIVED = {"_log_ratio", "_fill"}
"""Attributes that v2 transforms compute from their options."""


class Unknown(Exception):
    """A transform or one of its options is not recognized. Never reaches the user."""


@dataclass(frozen=True)
class Context:
    """A transform's position in the list: its input determines what it does."""

    tensor: bool
    """After ToImage or PILToTensor, where v2 resizes with torch."""
    pixels: PixelRule
    v2: bool


def flatten(transforms: Sequence[object]) -> list[object]:
    """Return the transforms with each Compose and Sequential replaced by its contents."""
    flat: list[object] = []
    for transform in transforms:
        if name_of(transform) == "Compose":
            flat += flatten(cast("Sequence[object]", options_of(transform)["transforms"]))
        elif type(transform) is torch.nn.Sequential and not _hooked(transform):
            flat += flatten(list(transform))
        else:
            flat.append(transform)
    return flat


def name_of(transform: object) -> str | None:
    """Return the name of a torchvision transform, v1 or v2; None for anything else, including subclasses."""
    kind = type(transform)
    defined = kind.__module__
    if defined != "torchvision.transforms.transforms" and not defined.startswith("torchvision.transforms.v2._"):
        return None
    if getattr(sys.modules.get(defined), kind.__qualname__, None) is not kind or _hooked(transform):
        return None
    return kind.__qualname__


def is_v2(transform: object) -> bool:
    """Whether the transform is one of `torchvision.transforms.v2`."""
    return ".v2." in type(transform).__module__


def options_of(transform: object) -> Options:
    """Return the transform's attributes, without those that every torch module has."""
    attributes: dict[str, object] = getattr(transform, "__dict__", {})
    return {name: value for name, value in attributes.items() if name not in _MODULE_ATTRIBUTES}


def op_of(transform: object, *, tensor: bool, pixels: PixelRule) -> ops.Op:
    """Return what the transform does to a tensor (if `tensor`) or to a Pillow image. Raises Unknown."""
    reader = READERS.get(name_of(transform) or "")
    options = options_of(transform)
    if reader is None or {*options} - _DERIVED != set(reader[1].split()):
        raise Unknown
    context = Context(tensor=tensor, pixels=pixels, v2=is_v2(transform))
    if tensor and (not context.v2 or options.get("antialias", True) is not True):
        raise Unknown
    return reader[0](options, context)


def _hooked(transform: object) -> bool:
    return any(getattr(transform, hooks, None) for hooks in _HOOKS)


def _resize(options: Options, context: Context) -> ops.Op:
    size = () if options["size"] is None else _integers(options["size"], (1, 2))
    longest = None if options["max_size"] is None else _integer(options["max_size"])
    if (longest is None and not size) or (
        longest is not None and (len(size) == 2 or longest <= max(size, default=0))
    ):
        raise Unknown
    return ops.Resize(size, longest, _resampling(options["interpolation"], context))


def _center_crop(options: Options, context: Context) -> ops.Op:
    return ops.CenterCrop(*_pair(options["size"]))


def _horizontal_flip(options: Options, context: Context) -> ops.Op:
    return ops.RandomFlip(1, probability_of(options["p"]))


def _vertical_flip(options: Options, context: Context) -> ops.Op:
    return ops.RandomFlip(0, probability_of(options["p"]))


def _random_crop(options: Options, context: Context) -> ops.Op:
    fill, padding = _fill(options["fill"]), options["padding"]
    _constant(options)
    if padding is not None and context.v2:
        left, right, top, bottom = _integers(padding, (4,))
        padding = (left, top, right, bottom)
    border = None if padding is None else _border(padding, fill)
    height, width = _pair(options["size"])
    return ops.RandomCrop(height, width, border, bool(options["pad_if_needed"]), fill, draws_both=not context.v2)


def _random_resized_crop(options: Options, context: Context) -> ops.Op:
    scale, ratio = range_of(options["scale"]), range_of(options["ratio"])
    resampling = _resampling(options["interpolation"], context)
    return ops.RandomResizedCrop(*_pair(options["size"]), scale, ratio, log_range(options), resampling)


READERS: dict[str, tuple[Callable[[Options, Context], ops.Op], str]] = {
    "Resize": (_resize, "size max_size interpolation antialias"),
    "CenterCrop": (_center_crop, "size"),
    "RandomHorizontalFlip": (_horizontal_flip, "p"),
    "RandomVerticalFlip": (_vertical_flip, "p"),
    "RandomCrop": (_random_crop, "size padding pad_if_needed fill padding_mode"),
    "RandomResizedCrop": (_random_resized_crop, "size scale ratio interpolation antialias"),
}
"""How each known transform is read, and the attributes it has."""


def _resampling(interpolation: object, context: Context) -> Resampling:
    name = getattr(interpolation, "value", interpolation)
    if isinstance(name, int):  # Pillow's own constants
        name = {int(one): one.name.lower() for one in Image.Resampling}.get(name)
    if name == "nearest-exact" and not context.tensor:
        name = "nearest"  # Pillow's nearest is the exact one
    if name not in get_args(Filter):
        raise Unknown
    if context.tensor and not (name in ("bilinear", "bicubic") and torch_resizes_uint8()):
        raise Unknown
    # torch's bicubic differs from Pillow's by up to 31 where a sharp edge makes it overshoot.
    close = context.pixels != "identical" and name == "bilinear" and torch_resizes_uint8()
    return Resampling(cast(Filter, name), "torch" if context.tensor else "fastest" if close else "pillow")


def _border(padding: object, fill: int) -> ops.Pad:
    numbers = _integers(padding, (1, 2, 4), least=0)
    left, top, right, bottom = numbers * (4 // len(numbers))
    return ops.Pad(left, top, right, bottom, fill)


def _constant(options: Options) -> None:
    if options["padding_mode"] != "constant":
        raise Unknown


def _fill(value: object) -> int:
    if value not in range(256):
        raise Unknown
    return int(cast(int, value))


def _integer(value: object, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise Unknown
    return value


def _integers(value: object, lengths: tuple[int, ...], least: int = 1) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(numbers) not in lengths:
        raise Unknown
    return tuple(_integer(number, least) for number in numbers)


def _pair(value: object) -> tuple[int, int]:
    numbers = _integers(value, (1, 2))
    return numbers[0], numbers[-1]


def log_range(options: Options) -> tuple[float, float]:
    """Return the logarithm of the option `ratio` in float32, which v2 stores. Raises Unknown."""
    low, high = range_of(options["ratio"])
    if not low > 0:
        raise Unknown
    ends = torch.tensor([low, high], dtype=torch.float32, device="cpu").log()
    stored = options.get("_log_ratio", ends)
    if not isinstance(stored, torch.Tensor) or not torch.equal(stored, ends):
        raise Unknown
    return ends[0].item(), ends[1].item()


def range_of(value: object) -> tuple[float, float]:
    """Return a pair of numbers, the smaller first. Raises Unknown."""
    if (
        not isinstance(value, (tuple, list))
        or len(value) != 2
        or not all(isinstance(end, (int, float)) for end in value)
    ):
        raise Unknown
    low, high = value
    if not low <= high:
        raise Unknown
    return float(low), float(high)


def probability_of(value: object) -> float:
    """Return the probability, rounded to float32. Raises Unknown."""
    if not isinstance(value, (int, float)):
        raise Unknown
    return float(np.float32(value))  # torch rounds it when comparing it with a float32


def numbers_of(values: object, channels: int) -> tuple[float, ...]:
    """Return one number per channel; a single number applies to all channels. Raises Unknown."""
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, (int, float)) for value in values):
        raise Unknown
    if len(values) not in (1, channels):
        raise Unknown
    return tuple(float(value) for value in values) * (channels // len(values))


def only_retypes(transform: object, *, tensor: bool) -> bool:
    """Whether the transform only turns a Pillow image into a uint8 tensor, or a tensor into another tensor type."""
    name, options = name_of(transform), options_of(transform)
    if tensor:
        to_uint8 = name == "ToDtype" and options == {"dtype": torch.uint8, "scale": options.get("scale")}
        return to_uint8 or (name == "ToPureTensor" and not options)
    return name in ("ToImage", "PILToTensor") and not options


def makes_float(transform: object) -> bool:
    """Whether the transform turns an image into floats between 0 and 1."""
    name, options = name_of(transform), options_of(transform)
    return name in ("ToTensor", "ConvertImageDtype") or (
        name == "ToDtype" and options.get("dtype") is not torch.uint8
    )


def scaling_of(transforms: Sequence[object], *, tensor: bool, channels: int) -> Scaling | None:
    """Return what the transforms, starting with the first one that produces floats, do to an image.

    Args:
        transforms: the transforms from the first that produces floats.
        tensor: whether the image is a tensor; otherwise Pillow's.
        channels: number of channels.

    Returns:
        The scaling; None if there are no transforms and the image stays uint8.

    Raises:
        Unknown: if the transforms are not recognized.
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
