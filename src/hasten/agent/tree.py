"""Tensors in arguments, outputs and batches: lists, tuples, dicts, and objects with attributes.

Modules and classes are not looked into.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

MOST_ITEMS = 1000  # looked at: a batch of Python objects has thousands, and no tensor among them


def tensors_in(value: object, *, most: int = 64) -> Iterator[torch.Tensor]:
    """The tensors in lists, tuples, dicts and objects with attributes, at most `most`, among the first thousand items."""
    waiting = [value]
    found = looked = 0
    while waiting and found < most and looked < MOST_ITEMS:
        item = waiting.pop()
        looked += 1
        if isinstance(item, torch.Tensor):
            found += 1
            yield item
        elif isinstance(item, Mapping):
            waiting.extend(reversed(list(item.values())))
        elif isinstance(item, (list, tuple)):
            waiting.extend(reversed(item[:most]))
        elif item is not None and hasattr(item, "__dict__") and not isinstance(item, (type, nn.Module)):
            waiting.extend(v for v in vars(item).values() if isinstance(v, torch.Tensor))


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Its values without history, of a tensor that is distributed this rank's shard alone.

    Any look at more of it would be a collective, in which the other ranks do not take part.
    """
    values = tensor.detach()
    to_local = getattr(values, "to_local", None)  # of a DTensor
    return values if to_local is None else to_local()


def num_samples(batch: object) -> int | None:
    """Samples in a batch: the first dimension of its first tensor that has one."""
    # Nearly every batch is a list of tensors; looking through any tree takes ten times as long.
    first = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    if not isinstance(first, torch.Tensor) or not first.dim():
        first = next((tensor for tensor in tensors_in(batch, most=8) if tensor.dim()), None)
    return int(first.size(0)) if first is not None else None  # a nested tensor has no shape


def mapped(value: object, change: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """A copy of a batch with each of its tensors changed: in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (dict, UserDict)):
        return type(value)({k: mapped(v, change) for k, v in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(v, change) for v in value))  # pyright: ignore[reportArgumentType]
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(v, change) for v in value])
    return value


def with_tensors(value: object, change: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """The same tree with each tensor changed: lists, tuples, dicts, and outputs of the script's own class."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_tensors(v, change) for v in value))  # pyright: ignore[reportArgumentType]
    if isinstance(value, (list, tuple)):
        return type(value)([with_tensors(v, change) for v in value])
    if isinstance(value, Mapping):
        for key in list(value):  # in place: transformers' outputs are dicts with attributes
            value[key] = with_tensors(value[key], change)  # type: ignore[index]
    elif not isinstance(value, (nn.Module, type)) and not callable(value):
        for name, inner in list(getattr(value, "__dict__", {}).items()):
            if isinstance(inner, torch.Tensor):
                object.__setattr__(value, name, change(inner))
    return value
