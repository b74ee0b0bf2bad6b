"""Serialize a value for another process of the same run, and deserialize it.

Pickle's protocol 5 (PEP 574) stores the structure; the contents of arrays and tensors stay out of the pickle.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

ALIGNMENT = 64
_HEAD = struct.Struct("<Q")  # the number of buffers; the size of each follows
_Array = np.ndarray[Any, np.dtype[Any]]


class PackError(Exception):
    """The value cannot be pickled, so it can be neither stored nor sent; its cause is the error from the value's class."""


class Packed(NamedTuple):
    """A serialized value. The buffers are the value's own memory if it is contiguous, not copies."""

    header: bytes | memoryview
    buffers: list[memoryview]
    size: int
    """Bytes that the buffers take when each starts at a multiple of ALIGNMENT."""


def pack(value: object, pickler: type[pickle.Pickler] | None = None) -> Packed:
    """Serialize the value, with another pickler if it has `reduce_array` too. Raises PackError if it cannot be pickled."""
    file = io.BytesIO()
    taken: list[pickle.PickleBuffer] = []
    try:
        (pickler or _Packer)(file, protocol=5, buffer_callback=taken.append).dump(value)
        buffers = [buffer.raw() for buffer in taken]
    except Exception as error:  # a user's class may raise anything
        raise PackError(f"{type(value).__qualname__} cannot be pickled: {error}") from error
    sizes = (buffer.nbytes for buffer in buffers)
    header = struct.pack(f"<{len(buffers) + 1}Q", len(buffers), *sizes) + file.getvalue()
    return Packed(header, buffers, sum(aligned(buffer.nbytes) for buffer in buffers))


def write_buffers(buffers: Sequence[memoryview], memory: memoryview) -> None:
    """Write the buffers into writable memory of at least `Packed.size` bytes, in the layout `unpack` expects."""
    start = 0
    for buffer in buffers:
        memory[start : start + buffer.nbytes] = buffer
        start += aligned(buffer.nbytes)


def unpack(header: bytes | memoryview, memory: memoryview) -> Any:
    """Deserialize the value.

    Its arrays and tensors are views of `memory`, which must be writable; arrays that were read-only become writable. The
    bytes must come from this run's own processes.

    Raises:
        Exception: whatever unpickling raises if the bytes do not come from `pack` and `write_buffers`.
    """
    (num_buffers,) = _HEAD.unpack_from(header)
    views: list[memoryview] = []
    start = 0
    for size in struct.unpack_from(f"<{num_buffers}Q", header, _HEAD.size):
        views.append(memoryview(np.ndarray(size, np.uint8, memory[start : start + size])))  # pyright: ignore
        start += aligned(size)
    pickled = memoryview(header)[_HEAD.size * (1 + num_buffers) :]
    return pickle.Unpickler(io.BytesIO(pickled), buffers=views).load()


def aligned(size: int) -> int:
    """Round up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Packer(pickle.Pickler):
    def reducer_override(self, obj: Any, /) -> Any:
        return reduce_array(obj)


def reduce_array(obj: Any) -> Any:
    """Reduce an array or a tensor to a buffer outside the pickle; NotImplemented for anything else."""
    if type(obj) is np.ndarray and not obj.dtype.hasobject:
        laid, strides = _lay_array(obj)
        # A dtype's name is read ten times as fast as its pickle, but does not describe fields or foreign types.
        dtype = obj.dtype.str if np.dtype(obj.dtype.str) == obj.dtype else obj.dtype
        return _array, (_buffer(laid), dtype, obj.shape, strides)
    if isinstance(obj, torch.Tensor) and _is_memory(obj):
        plain = obj.as_subclass(torch.Tensor)
        laid, strides = _lay_tensor(plain)
        buffer = _buffer(laid)
        dtype = str(obj.dtype).removeprefix("torch.")
        if type(obj) is torch.Tensor:
            return _tensor, (buffer, dtype, tuple(obj.shape), strides)
        return _tensor, (buffer, dtype, tuple(obj.shape), strides, type(obj), obj.__dict__)
    return NotImplemented


def _buffer(laid: _Array) -> pickle.PickleBuffer:
    # Not of `laid.data`: a memoryview with a buffer taken from it, in a cycle, crashes CPython's garbage collector.
    return pickle.PickleBuffer(laid)  # pyright: ignore[reportArgumentType]


def _is_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is nothing but elements in this process's memory."""
    kind = type(tensor)
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (
            tensor.is_nested or tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
        )
        and all(
            getattr(kind, name) is getattr(torch.Tensor, name) for name in ("__torch_dispatch__", "__reduce_ex__")
        )
    )


def _lay_array(array: _Array) -> tuple[_Array, tuple[int, ...]]:
    """Return the array's bytes as one flat array, in memory order, and the matching strides."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    laid = np.asarray(array.transpose(order), order="C")
    strides = dict(zip(order, laid.strides))
    flat = laid.reshape(-1).view(np.uint8) if laid.nbytes else np.empty(0, np.uint8)
    return flat, tuple(strides[axis] for axis in range(array.ndim))


def _lay_tensor(tensor: torch.Tensor) -> tuple[_Array, tuple[int, ...]]:
    order = sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis))
    laid = tensor.permute(order).contiguous()
    strides = dict(zip(order, laid.stride()))
    flat = laid.reshape(-1).view(torch.uint8).numpy()
    return flat, tuple(strides[axis] for axis in range(tensor.ndim))


def _array(
    memory: memoryview, dtype: str | np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
) -> _Array:
    return np.ndarray(shape, dtype, memory, strides=strides if 0 not in shape else None)


def _tensor(
    memory: memoryview,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    kind: type[torch.Tensor] = torch.Tensor,
    attributes: dict[str, Any] | None = None,
) -> torch.Tensor:
    element: torch.dtype = getattr(torch, dtype)
    if 0 in shape:
        tensor = torch.empty_strided(shape, strides, dtype=element)
    else:
        tensor = torch.frombuffer(memory, dtype=element).as_strided(shape, strides)
    if kind is torch.Tensor:
        return tensor
    typed = tensor.as_subclass(kind)
    vars(typed).update(attributes or {})
    return typed
