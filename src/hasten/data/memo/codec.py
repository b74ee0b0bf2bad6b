"""Encode memoized values: trees of arrays, tensors and plain values. Nothing is pickled, so decoding runs no code.

    length of the header | header: JSON | padding | buffer | padding | buffer ...

Each buffer starts at a multiple of 64 bytes. The header describes the tree; a leaf with data gives its buffer's size.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hasten.data.layout.packing import aligned

_LENGTH = struct.Struct("<I")
_TORCH = {
    str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}
SHARED_FROM = 1 << 20  # bytes; larger values are views of the memory that was read, smaller ones are copies
SHORT = 512  # bytes; shorter headers are memoized, as images of one size have the same header
_PLAIN = (str, int, float, bool, type(None))


class NotStorableError(Exception):
    """The value contains something that cannot be stored exactly."""


@dataclass(frozen=True)
class Raw:
    """Bytes with metadata, from which an adapter builds its own kind of value."""

    meta: dict[str, Any]
    data: Any
    """Any object with the buffer interface; when decoded, an `np.ndarray` of uint8 that is not shared."""


@dataclass(frozen=True)
class Encoded:
    """A value ready to be written: the concatenated `pieces` have `size` bytes."""

    pieces: list[bytes | memoryview]
    size: int


def encode(value: Any) -> Encoded:
    """Encode the value. Raises NotStorableError."""
    buffers: list[memoryview] = []
    try:
        header = json.dumps(_describe(value, buffers), separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError, RuntimeError) as error:  # many digits, a cycle, an unusual tensor
        raise NotStorableError(repr(error)) from error
    if len(buffers) > 1 and _overlap(buffers):
        raise NotStorableError("arrays that share memory")
    start = aligned(_LENGTH.size + len(header))
    pieces: list[bytes | memoryview] = [
        _LENGTH.pack(len(header)) + header + bytes(start - _LENGTH.size - len(header))
    ]
    size = start
    for buffer in buffers:
        pieces += [buffer, bytes(aligned(buffer.nbytes) - buffer.nbytes)]
        size += aligned(buffer.nbytes)
    return Encoded(pieces, size)


def _overlap(buffers: list[memoryview]) -> bool:
    places = sorted((np.frombuffer(one, np.uint8).ctypes.data, one.nbytes) for one in buffers if one.nbytes)
    return any(start + size > following for (start, size), (following, _) in zip(places, places[1:]))  # noqa: RUF007


def decode(memory: np.ndarray[Any, Any], *, is_own: bool = True) -> Any:
    """Decode a value.

    Args:
        memory: uint8, writable; large arrays of the value are views of it.
        is_own: whether this caller alone uses `memory`; if not, all arrays are views of it and must not be written to.

    Raises:
        ValueError: if `memory` does not hold an encoded value.
    """
    try:
        (length,) = _LENGTH.unpack_from(memory.data)
        header = memory[_LENGTH.size : _LENGTH.size + length].tobytes()
        tree = _parsed(header) if length <= SHORT else json.loads(header)
        return _Reader(memory, aligned(_LENGTH.size + length), is_own).read(tree)
    except Exception as error:  # bytes from another source can cause any error
        raise ValueError(f"not a stored value: {error!r}") from error


@functools.lru_cache(maxsize=4096)
def _parsed(header: bytes) -> Any:
    return json.loads(header)  # callers never modify it


def _describe(value: Any, buffers: list[memoryview]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        if kind is float and not math.isfinite(value):
            return {"float": value.hex()}
        return {"value": value}
    if kind is np.ndarray:
        return _describe_array(value, buffers)
    if kind is torch.Tensor:
        return _describe_tensor(value, buffers)
    if kind is Raw:
        data = memoryview(value.data).cast("B")
        buffers.append(data)
        return {"raw": data.nbytes, "meta": value.meta}
    if kind in (tuple, list):
        return {kind.__name__: [_describe(one, buffers) for one in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": [[key, _describe(one, buffers)] for key, one in value.items()]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic) and kind.__module__ == "numpy" and kind not in (np.object_, np.void):
        return {"scalar": _describe_array(np.asarray(value), buffers)}
    raise NotStorableError(f"{kind.__module__}.{kind.__qualname__}")


def _describe_array(array: np.ndarray[Any, Any], buffers: list[memoryview]) -> dict[str, Any]:
    if array.dtype.hasobject or np.dtype(array.dtype.str) != array.dtype:
        raise NotStorableError(f"an array of {array.dtype}")
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    laid = array.transpose(order)
    if not laid.flags.c_contiguous:
        raise NotStorableError("an array that is a non-contiguous view")
    buffers.append(laid.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b""))
    found = {"array": array.nbytes, "dtype": array.dtype.str, "shape": array.shape, "strides": array.strides}
    return found if array.flags.writeable else {**found, "readonly": True}


def _describe_tensor(tensor: torch.Tensor, buffers: list[memoryview]) -> dict[str, Any]:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    if not plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise NotStorableError("a tensor that is more than its elements in memory")
    dense = torch.empty_like(tensor, memory_format=torch.preserve_format).stride() == tensor.stride()
    if not dense:
        raise NotStorableError("a tensor that is a non-contiguous view")
    if vars(tensor):
        raise NotStorableError("a tensor with attributes")
    num_bytes = tensor.numel() * tensor.element_size()
    # Not through `numpy()`, after which the tensor could not be resized.
    buffers.append(memoryview((ctypes.c_char * num_bytes).from_address(tensor.data_ptr())).cast("B"))
    name = str(tensor.dtype).removeprefix("torch.")
    return {"tensor": buffers[-1].nbytes, "dtype": name, "shape": tuple(tensor.shape), "stride": tensor.stride()}


class _Reader:
    """Reads a described tree whose buffers follow one another in memory."""

    def __init__(self, memory: np.ndarray[Any, Any], start: int, is_own: bool) -> None:
        self._memory = memory
        self._at = start
        self._is_own = is_own

    def take(self, size: int) -> np.ndarray[Any, Any]:
        start, self._at = self._at, self._at + aligned(size)
        if size < 0 or self._at > len(self._memory):
            raise ValueError("a stored value is truncated")
        return self._memory[start : start + size]

    def read(self, tree: dict[str, Any]) -> Any:
        kind = next(iter(tree))
        return _READERS[kind](self, tree)

    def array(self, tree: dict[str, Any]) -> Any:
        data, shape, strides = self.take(tree["array"]), tuple(tree["shape"]), tuple(tree["strides"])
        array = np.ndarray(
            shape, tree["dtype"], data.data if data.size else None, strides=strides if data.size else None
        )
        if data.size < SHARED_FROM and self._is_own:
            array = array.copy("K")
        array.flags.writeable = "readonly" not in tree
        return array

    def tensor(self, tree: dict[str, Any]) -> Any:
        data, dtype, shape, stride = self.take(tree["tensor"]), _TORCH[tree["dtype"]], tree["shape"], tree["stride"]
        if data.size >= SHARED_FROM:
            return torch.empty(0, dtype=dtype).set_(torch.from_numpy(data).untyped_storage(), 0, shape, stride)
        tensor = torch.empty_strided(shape, stride, dtype=dtype)
        if tensor.untyped_storage().nbytes() != data.size:
            raise ValueError("the size of a stored tensor does not match its data")
        ctypes.memmove(tensor.data_ptr(), data.ctypes.data, data.size)
        return tensor


_READERS: dict[str, Callable[[_Reader, dict[str, Any]], Any]] = {
    "value": lambda reader, tree: tree["value"],
    "float": lambda reader, tree: float.fromhex(tree["float"]),
    "bytes": lambda reader, tree: base64.b64decode(tree["bytes"]),
    "array": _Reader.array,
    "tensor": _Reader.tensor,
    "scalar": lambda reader, tree: reader.read(tree["scalar"])[()],
    "raw": lambda reader, tree: Raw(tree["meta"], reader.take(tree["raw"])),
    "tuple": lambda reader, tree: tuple(reader.read(one) for one in tree["tuple"]),
    "list": lambda reader, tree: [reader.read(one) for one in tree["list"]],
    "dict": lambda reader, tree: {key: reader.read(one) for key, one in tree["dict"]},
}
