"""The structure of a sample, and how samples become a batch with a single copy.

A leaf of fixed shape (tensor, array, number) takes a row of an array; any other leaf (str, bytes) stays an object, and the
batch holds a list of them. The batch equals what `torch.utils.data.default_collate` returns for the same samples, including
types. Dataclasses, for which default_collate raises, are supported too.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from hasten.data.layout.packing import aligned
from hasten.data.layout.rows import NUMPY_DTYPES, WRITERS, Leaf, MismatchError, Target
from hasten.data.layout.scaling import ScaledImage, Scaling, scale


@dataclass(frozen=True)
class LateImages:
    """Images of a batch that are converted to floats on the device."""

    pixels: torch.Tensor
    """uint8, (N, C, H, W)."""
    scaling: Scaling


@dataclass(frozen=True)
class Spec:
    """One node of a layout: a leaf, or a container with its parts."""

    kind: str  # "tensor" "array" "number" "image" "object", or "mapping" "sequence" "named" "data"
    type: type
    number: int = -1  # index of the leaf among the rows, or among the objects
    keys: tuple[Any, ...] = ()
    parts: tuple[Spec, ...] = ()


class Layout:
    """The structure of a dataset's samples, read from one of them.

    Picklable, so that it can be sent to workers.

    Args:
        sample: the sample to read.
        late_floats: keep images as uint8 in their rows, to be converted to floats on the device.

    Raises:
        MismatchError: if the sample cannot be stored in rows.
    """

    def __init__(self, sample: object, *, late_floats: bool = False) -> None:
        self._late_floats = late_floats
        self.rows: list[Leaf] = []
        self.num_objects = 0
        self._beyond_torch = False
        self.root = self._read(sample)

    @classmethod
    def of(cls, sample: object, *, late_floats: bool) -> Layout | None:
        """Return the layout of such samples; None if they cannot be stored in rows, or torch would collate differently."""
        try:
            layout = cls(sample, late_floats=late_floats)
        except MismatchError:
            return None
        return layout if layout.agrees_with_torch(sample) else None

    def _read(self, value: Any) -> Spec:
        kind: type = type(value)
        if isinstance(value, torch.Tensor):
            if not _is_plain(value):
                raise MismatchError(f"a {kind.__name__} on {value.device} cannot be stored in rows")
            return self._leaf("tensor", kind, Leaf(value.dtype, tuple(value.shape)))
        if isinstance(value, ScaledImage):
            dtype = torch.uint8 if self._late_floats else value.scaling.dtype
            late = value.scaling if self._late_floats else None
            return self._leaf("image", kind, Leaf(dtype, tuple(value.pixels.shape), None, late))
        if isinstance(value, np.ndarray):
            return self._leaf("array", kind, Leaf(_dtype(value), value.shape, value.dtype))
        if isinstance(value, np.generic) and not isinstance(value, (np.str_, np.bytes_)):
            return self._leaf("number", kind, Leaf(_dtype(value), ()))
        for number, dtype in ((bool, torch.bool), (int, torch.int64), (float, torch.float64)):
            if isinstance(value, number):
                return self._leaf("number", kind, Leaf(dtype, ()))
        if isinstance(value, (str, bytes)):
            self.num_objects += 1
            return Spec("object", kind, self.num_objects - 1)
        if kind is dict:
            return Spec("mapping", kind, keys=tuple(value), parts=tuple(self._read(v) for v in value.values()))
        if kind in (tuple, list):
            return Spec("sequence", kind, parts=tuple(self._read(v) for v in value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return Spec("named", kind, parts=tuple(self._read(v) for v in value))
        # A type registered with default_collate is collated by the user's function.
        if dataclasses.is_dataclass(value) and not isinstance(value, tuple(default_collate_fn_map)):
            self._beyond_torch = True
            keys = tuple(field.name for field in dataclasses.fields(value))
            return Spec("data", kind, keys=keys, parts=tuple(self._read(getattr(value, key)) for key in keys))
        raise MismatchError(f"a {kind.__name__} cannot be stored in rows")

    def _leaf(self, kind: str, of: type, rows: Leaf) -> Spec:
        self.rows.append(rows)
        return Spec(kind, of, len(self.rows) - 1)

    def num_bytes(self, length: int) -> int:
        """Return the bytes of a batch of `length` samples."""
        return sum(aligned(rows.row_bytes * length) for rows in self.rows)

    def arrays(self, memory: Any, length: int) -> list[torch.Tensor]:
        """Return the arrays of a batch, each (length, *shape): views of `memory`, which they keep alive."""
        found: list[torch.Tensor] = []
        offset = 0
        for rows in self.rows:
            size = rows.row_bytes * length
            if size:
                count = size // rows.dtype.itemsize
                flat = torch.frombuffer(memory, dtype=rows.dtype, count=count, offset=offset)
            else:
                flat = torch.empty(0, dtype=rows.dtype)
            found.append(flat.view(length, *rows.shape))
            offset += aligned(size)
        return found

    def targets(self, arrays: Sequence[torch.Tensor]) -> list[Target]:
        """Return what `write` writes to: the same arrays, as NumPy arrays if their dtype allows it."""
        return [array.numpy() if array.dtype in NUMPY_DTYPES else array for array in arrays]

    def write(self, samples: Sequence[Any], targets: Sequence[Target], start: int) -> list[list[object]]:
        """Write samples to the rows from `start` and return each sample's leaves that have no rows.

        Raises MismatchError, and leaves rows half-written, if a sample has another structure.
        """
        objects: list[list[object]] = [[] for _ in samples] if self.num_objects else []
        try:
            self._write(self.root, samples, targets, slice(start, start + len(samples)), objects)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:  # raised by NumPy or torch
            raise MismatchError(str(error)) from error
        return objects

    def _write(
        self, part: Spec, values: Sequence[Any], targets: Sequence[Target], rows: slice, objects: list[list[object]]
    ) -> None:
        if set(map(type, values)) != {part.type}:
            raise MismatchError(f"not every value is a {part.type.__name__}")
        if part.kind == "object":
            for collected, value in zip(objects, values):
                collected.append(value)
        elif part.kind in WRITERS:
            WRITERS[part.kind](self.rows[part.number], values, targets[part.number], rows)
        else:
            for inner, column in zip(part.parts, _columns(part, values)):
                self._write(inner, column, targets, rows, objects)

    def batch(self, arrays: Sequence[torch.Tensor], objects: Sequence[Sequence[object]]) -> Any:
        """Return the batch of these arrays and of each sample's objects, nested as by default_collate."""
        return self._batch(self.root, arrays, objects)

    def _batch(self, part: Spec, arrays: Sequence[torch.Tensor], objects: Sequence[Sequence[object]]) -> Any:
        if part.kind in WRITERS:
            scaling = self.rows[part.number].scaling
            return arrays[part.number] if scaling is None else LateImages(arrays[part.number], scaling)
        if part.kind == "object":
            return [of_sample[part.number] for of_sample in objects]
        parts = [self._batch(inner, arrays, objects) for inner in part.parts]
        return _rebuild(part, parts)  # a tuple becomes a list, as in default_collate

    def read(self, arrays: Sequence[torch.Tensor], row: int, objects: Sequence[object]) -> Any:
        """Rebuild the sample of a row as it was before it was written; images become floats."""
        return self._sample(self.root, [array[row] for array in arrays], objects)

    def _sample(self, part: Spec, rows: Sequence[torch.Tensor], objects: Sequence[object]) -> Any:
        if part.kind in ("tensor", "image"):
            return rows[part.number].clone()
        if part.kind == "array":
            return rows[part.number].numpy().copy()
        if part.kind == "number":
            return part.type(rows[part.number].item())
        if part.kind == "object":
            return objects[part.number]
        parts = [self._sample(inner, rows, objects) for inner in part.parts]
        return _rebuild(part, tuple(parts) if part.type is tuple else parts)

    def agrees_with_torch(self, sample: object) -> bool:
        """Whether this torch's default_collate and `batch` return the same for two such samples."""
        if self._beyond_torch:
            return True
        memory = np.empty(max(1, self.num_bytes(2)), dtype=np.uint8)
        arrays = self.arrays(memory, 2)
        try:
            objects = self.write([sample, sample], self.targets(arrays), 0)
            plain = with_floats(sample)
            return _same_structure(default_collate([plain, plain]), self.batch(arrays, objects))
        except Exception:  # the batch that is collated for real raises it again
            return False


def with_floats(sample: Any) -> Any:
    """Return a sample that has no rows with its images converted to floats."""
    if isinstance(sample, ScaledImage):
        floats = torch.empty(sample.pixels.shape, dtype=sample.scaling.dtype)
        scale(sample, floats)
        return floats
    if type(sample) in (tuple, list):
        return type(sample)(with_floats(value) for value in sample)
    return sample


def map_tensors(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to the tensors and late images of a batch, at any depth of dicts, lists and tuples."""
    if isinstance(batch, (torch.Tensor, LateImages)):
        return function(batch)
    if isinstance(batch, dict):
        mapped = {key: map_tensors(value, function) for key, value in batch.items()}
        if type(batch) is dict:
            return mapped
        copied = copy.copy(batch)  # its class may need other arguments
        copied.update(mapped)
        return copied
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if type(batch) in (list, tuple):
        return type(batch)(map_tensors(value, function) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        parts = [map_tensors(getattr(batch, field.name), function) for field in dataclasses.fields(batch)]
        return _rebuild(Spec("data", type(batch), keys=tuple(f.name for f in dataclasses.fields(batch))), parts)
    return batch


def _rebuild(part: Spec, parts: Sequence[Any]) -> Any:
    if part.kind == "mapping":
        return dict(zip(part.keys, parts))
    if part.kind == "named":
        return part.type(*parts)
    if part.kind == "data":
        rebuilt = object.__new__(part.type)
        for key, value in zip(part.keys, parts):
            object.__setattr__(rebuilt, key, value)  # works for frozen dataclasses too
        return rebuilt
    return parts


def _columns(part: Spec, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """Return, for each part, its values across all samples."""
    if part.kind == "data":
        return [[getattr(value, key) for value in values] for key in part.keys]
    if set(map(len, values)) != {len(part.parts)}:
        raise MismatchError(f"not every {part.type.__name__} has {len(part.parts)} elements")
    if part.kind != "mapping":
        return list(zip(*values))
    try:
        return [[value[key] for value in values] for key in part.keys]
    except KeyError as error:
        raise MismatchError(f"a sample lacks the key {error}") from None


def _same_structure(one: Any, other: Any) -> bool:
    if isinstance(other, LateImages):
        return isinstance(one, torch.Tensor) and (one.dtype, one.shape) == (other.scaling.dtype, other.pixels.shape)
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same_structure(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same_structure(*pair) for pair in zip(one, other))
    return bool(one == other)


def _is_plain(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided
    return plain and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _dtype(array: np.ndarray[Any, Any] | np.generic) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
    except TypeError:
        raise MismatchError(f"an array of {array.dtype} cannot be stored in rows") from None
