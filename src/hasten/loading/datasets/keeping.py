"""A sample, or what goes into a transform, in a form that can be kept, and back.

In: nests of tuples, lists and dicts. Out: the same nests, whose leaves nobody else holds: images as arrays, copies of
arrays and tensors; but a large array that was read-only comes back as a view. Refuses to know where they are kept, and
what cannot be had back exactly as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from hasten.loading.datasets.parts import SCALARS
from hasten.loading.datasets.promises import Promise, Token, token_of

VIEWED_FROM = 4096  # bytes; who keeps a view keeps all that lies beside it


class UnkeepableError(Exception):
    """A value could not be had back as it was; no user sees this."""


@dataclass(frozen=True, eq=False)
class Picture:
    """An image of Pillow's in mode RGB or L."""

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    info: dict[Any, Any]


def kept(value: Any, *, any_image: bool = False) -> Any:
    """The form to keep. Raises UnkeepableError.

    `any_image`: an image of Pillow's that knows its file may come back as one that does not.
    """
    return _mapped(value, lambda leaf: _kept_leaf(leaf, any_image))


def opened(value: Any, results: list[Any]) -> Any:
    """From the kept form, which stays as it is. `results` stand in for promises.

    A large array that was read-only, as those are that view an image of Pillow's, views the kept form.
    """
    return _mapped(value, lambda leaf: _opened_leaf(leaf, results))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    kind: type[Any] = type(value)
    if kind in (tuple, list):
        return kind([_mapped(one, change) for one in value])
    if kind is dict:
        return {name: _mapped(one, change) for name, one in value.items()}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):  # isinstance would touch a promise
        return kind(*(_mapped(one, change) for one in value))
    return change(value)


def _kept_leaf(leaf: Any, any_image: bool) -> Any:
    kind: type[Any] = type(leaf)
    if kind is Promise:
        return token_of(leaf)
    if kind in SCALARS or isinstance(leaf, np.generic):
        return leaf
    if kind is np.ndarray and not leaf.dtype.hasobject:
        return _copied_array(leaf)
    if isinstance(leaf, torch.Tensor):
        return _copied(leaf)
    if kind is Image.Image or (any_image and isinstance(leaf, Image.Image) and kind.__module__.startswith("PIL.")):
        if leaf.mode not in ("RGB", "L") or leaf.width == 0 or leaf.height == 0:
            return leaf.copy()  # Pillow pickles it whole
        return Picture(np.asarray(leaf), dict(leaf.info))
    raise UnkeepableError(f"{kind.__module__}.{kind.__qualname__}")


def _opened_leaf(leaf: Any, results: list[Any]) -> Any:
    kind: type[Any] = type(leaf)
    if kind is Token:
        result = results[leaf.number]
        return result if leaf.part is None else result[leaf.part]
    if kind is np.ndarray:
        return _copied_array(leaf) if leaf.flags.writeable or leaf.nbytes < VIEWED_FROM else leaf
    if kind is Picture:
        image = Image.fromarray(leaf.pixels)
        image.info = dict(leaf.info)
        return image
    return _copied(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _copied_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = array.copy(order="K")
    copy.flags.writeable = array.flags.writeable
    return copy


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    kind = type(tensor)
    known = kind is torch.Tensor or kind.__module__.startswith("torchvision.tv_tensors")
    if not known or tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad:
        raise UnkeepableError(f"{kind.__module__}.{kind.__qualname__}")
    copy = tensor.as_subclass(torch.Tensor).clone().as_subclass(kind)
    vars(copy).update(vars(tensor))
    return copy
