"""One array of a batch, and how the values of many samples are written to its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hasten.data.layout.scaling import ScaledImage, Scaling, scale

Target = torch.Tensor | np.ndarray[Any, Any]

NUMPY_DTYPES = frozenset(
    getattr(torch, name)
    for name in [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)


class MismatchError(Exception):
    """A sample does not have the structure of the one from which the layout was read."""


@dataclass(frozen=True)
class Leaf:
    """One array of a batch: the dtype of its tensor, and the shape of a sample's row."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    numpy_dtype: np.dtype[Any] | None = None
    """The samples' dtype if they are NumPy arrays."""
    scaling: Scaling | None = None
    """Set if the rows hold uint8 images that become floats once the batch is on its device."""

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return self.dtype.itemsize * math.prod(self.shape)


def _write_numbers(rows: Leaf, values: Sequence[Any], target: Target, where: slice) -> None:
    target[where] = values  # type: ignore[index]


def _write_tensors(rows: Leaf, values: Sequence[torch.Tensor], target: Target, where: slice) -> None:
    if any(value.dtype != rows.dtype or value.shape != rows.shape for value in values):
        raise MismatchError(f"not every tensor has shape {rows.shape} and dtype {rows.dtype}")
    out = target[where]
    torch.stack(list(values), out=torch.from_numpy(out) if isinstance(out, np.ndarray) else out)


def _write_arrays(rows: Leaf, values: Sequence[Any], target: Target, where: slice) -> None:
    if any(value.dtype != rows.numpy_dtype or value.shape != rows.shape for value in values):
        raise MismatchError(f"not every array has shape {rows.shape} and dtype {rows.numpy_dtype}")
    np.stack(values, out=target[where])  # type: ignore[arg-type]


def _write_images(rows: Leaf, values: Sequence[ScaledImage], target: Target, where: slice) -> None:
    for row, image in zip(range(where.start, where.stop), values):
        if image.pixels.shape != rows.shape or (rows.scaling is not None and image.scaling != rows.scaling):
            raise MismatchError(f"an image has shape {tuple(image.pixels.shape)} instead of {rows.shape}")
        out = torch.from_numpy(target[row]) if isinstance(target, np.ndarray) else target[row]
        if rows.scaling is None:
            scale(image, out)
        else:
            out.copy_(image.pixels)


WRITERS = {
    "number": _write_numbers,
    "tensor": _write_tensors,
    "array": _write_arrays,
    "image": _write_images,
}
