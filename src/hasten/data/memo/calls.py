"""Memoize library functions that read a file or decode bytes.

Only ordinary calls are memoized: the library's own function, called with a path or bytes first and plain values after it.
All other calls run unchanged: open files, output buffers, memory maps, array subclasses, functions replaced by other code.
"""

from __future__ import annotations

import builtins
import enum
import functools
import importlib.metadata
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch

from hasten.data.memo.keys import identity_of_bytes, identity_of_open, identity_of_path, identity_of_status, key_of
from hasten.data.memo.memo import current, get_or_compute

Function = Callable[..., Any]
RowOfTable = tuple[str, tuple[str, ...], Callable[[Any, ModuleType, bytes], None]]

PLAIN = (str, int, float, complex, bool, bytes, type(None), type(Ellipsis))
BYTES = (bytes, bytearray, memoryview, np.ndarray, torch.Tensor)


def is_exact_array(value: Any) -> bool:
    """Whether a value is an array that can be stored exactly: no subclass, no objects, not empty."""
    return type(value) is np.ndarray and value.size > 0 and not value.dtype.hasobject and value.dtype.metadata is None


def is_exact_tensor(value: Any) -> bool:
    """Whether a tensor is nothing but its elements and does not share its storage."""
    if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout != torch.strided or vars(value):
        return False
    return value.untyped_storage().nbytes() == value.numel() * value.element_size()


@dataclass(frozen=True)
class Call:
    """How calls of a function are memoized. The function's first argument is the source."""

    source: str
    """The type of the source: "path", "bytes", or "either"."""
    keeps: Callable[[Any, Any], bool] = lambda value, source: is_exact_array(value)
    """Whether to store a result; receives the result and the source."""
    fits: Callable[[Any, tuple[Any, ...], dict[str, Any]], bool] = lambda source, others, named: True
    """Whether to memoize a call; receives the source and the other arguments."""
    state: Callable[[], Any] = tuple
    """Global state on which the result depends, identified by its `repr`; None: the call is not memoized."""
    on_hit: Callable[[Any], None] = lambda source: None
    """Repeats side effects of the function on a hit: the warnings it issues on each call."""


def memoized(original: Function, name: str, release: bytes, call: Call) -> Function:
    """Return a memoized version of a function; `release` identifies the library."""

    @functools.wraps(original)
    def function(*arguments: Any, **named: Any) -> Any:
        if current() is None or not arguments:
            return original(*arguments, **named)
        source, others = arguments[0], arguments[1:]
        described = describe((others, tuple(sorted(named.items()))))
        state = None if described is None or not call.fits(source, others, named) else call.state()
        if described is None or state is None:
            return original(*arguments, **named)
        parts = (release, repr((name, described, state)).encode())
        return from_source(source, parts, lambda: original(*arguments, **named), call)

    return function


def from_source(source: Any, parts: tuple[bytes, ...], compute: Callable[[], Any], call: Call) -> Any:
    """Return what `compute` returns for a file, given by its path, or for bytes; `parts` identify the computation."""
    if call.source != "bytes" and is_plain_path(source):
        return from_path(
            source, parts, compute, keeps=lambda value: call.keeps(value, source), on_hit=lambda: call.on_hit(source)
        )
    data = plain_bytes(source) if call.source != "path" and type(source) in BYTES else None
    if data is not None:
        key = key_of(identity_of_bytes(data), _kind_of(source).encode(), *parts)
        return cached_call(
            key,
            compute,
            keeps=lambda value: call.keeps(value, source),
            on_hit=lambda: call.on_hit(source),
            source_bytes=data.nbytes,
        )
    return compute()


def from_path(
    path: Any,
    parts: tuple[bytes, ...],
    compute: Callable[[], Any],
    *,
    keeps: Callable[[Any], bool] = is_exact_array,
    on_hit: Callable[[], None] = lambda: None,
) -> Any:
    """Return what `compute` returns for the file at a path. The suffix is part of the key, as libraries inspect it."""
    try:
        status = os.stat(path)
        identity = identity_of_status(status, path)
        suffix = os.path.splitext(os.fspath(path))[1].encode(errors="surrogateescape")
    except (OSError, TypeError, ValueError):
        return compute()
    if identity is None:
        return compute()
    key = key_of(identity, type(path).__qualname__.encode(), suffix, *parts)

    def keeps_unchanged(value: Any) -> bool:
        return keeps(value) and identity_of_path(path) == identity

    return cached_call(key, compute, keeps=keeps_unchanged, on_hit=on_hit, source_bytes=status.st_size)


def from_open_file(
    descriptor: int,
    parts: tuple[bytes, ...],
    compute: Callable[[], Any],
    *,
    keeps: Callable[[Any], bool] = is_exact_array,
) -> Any:
    """Return what `compute` returns for an open file."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return compute()
    identity = identity_of_status(status, descriptor)
    if identity is None:
        return compute()

    def keeps_unchanged(value: Any) -> bool:
        return keeps(value) and identity_of_open(descriptor) == identity

    return cached_call(key_of(identity, b"open", *parts), compute, keeps=keeps_unchanged, source_bytes=status.st_size)


def cached_call(
    key: bytes,
    compute: Callable[[], Any],
    *,
    keeps: Callable[[Any], bool] = is_exact_array,
    on_hit: Callable[[], None] = lambda: None,
    source_bytes: int = 0,
) -> Any:
    """Return the value of a key; compute it if it is not stored, and store it if `keeps` allows it."""
    computed: list[Any] = []

    def compute_and_note() -> Any:
        computed.append(compute())
        return computed[0]

    value = get_or_compute(key, compute_and_note, is_unchanged=lambda: keeps(computed[0]), source_bytes=source_bytes)
    if not computed:
        on_hit()
    return value


# Arguments


def is_plain_path(source: Any) -> bool:
    """Whether a path is a string (Python's or NumPy's) or a `pathlib.Path`."""
    return type(source) in (str, np.str_) or (
        isinstance(source, os.PathLike) and type(source).__module__.partition(".")[0] == "pathlib"
    )


def plain_bytes(source: Any) -> memoryview | None:
    """Return bytes in memory without a copy; None for anything else."""
    if isinstance(source, (bytes, bytearray)):
        return memoryview(source)
    if type(source) is memoryview:
        return source.cast("B") if source.c_contiguous and source.format == "B" and source.nbytes else None
    if type(source) is np.ndarray and source.dtype == np.uint8 and source.flags.c_contiguous and source.size:
        return source.data.cast("B")
    if type(source) is torch.Tensor and source.dtype == torch.uint8 and source.device.type == "cpu":
        is_dense = source.layout == torch.strided and source.is_contiguous() and source.numel()
        return source.numpy().data.cast("B") if is_dense else None
    return None


def _kind_of(source: Any) -> str:
    return f"{type(source).__qualname__} {tuple(getattr(source, 'shape', ()))}"


def describe(value: Any) -> str | None:
    """Return text that identifies a plain value uniquely; None for any other argument."""
    if type(value) in PLAIN:
        return repr(value)
    if type(value) in (tuple, list):
        parts = [describe(one) for one in value]
        return None if None in parts else f"{type(value).__name__}({', '.join(cast('list[str]', parts))})"
    if isinstance(value, np.dtype):
        dtype = cast("np.dtype[Any]", value)
        return None if dtype.hasobject or dtype.metadata else f"dtype {dtype.descr} {dtype.itemsize}"
    if isinstance(value, (torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__module__}.{type(value).__qualname__}.{value.name}={value.value!r}"
    if isinstance(value, type):
        owner = {"builtins": builtins, "numpy": np}.get(value.__module__)
        return f"type {value.__module__}.{value.__name__}" if getattr(owner, value.__name__, None) is value else None
    if isinstance(value, np.generic) and type(value).__module__ == "numpy" and value.dtype.kind in "biufcSU":
        return f"numpy {value.dtype.str} {value.tobytes()!r}"
    return None


# State


def is_plain_torch() -> bool:
    """Whether tensors are created normally: not traced, not faked, not redirected to another device."""
    stacks = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()  # pyright: ignore[reportPrivateUsage]
    return not stacks and not torch._C._get_tracing_state()  # pyright: ignore[reportPrivateUsage]


def releases(*distributions: str) -> bytes:
    """Return the installed releases of distributions that another library uses for decoding."""
    found: list[str] = []
    for name in distributions:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(name)
    return " ".join(found).encode()


_OURS = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir)) + os.sep


def unwrapped(function: Any) -> tuple[Any, bytes]:
    """Return the function inside hasten's wrappers, and bytes that identify the wrappers that change its result."""
    changes = b""
    while _file_of(function).startswith(_OURS) and hasattr(function, "__wrapped__"):
        changes += getattr(function, "changes_result", b"")
        function = function.__wrapped__
    return function, changes


def belongs(function: Any, package: str) -> bool:
    """Whether a function belongs to this package and was not replaced by other code; hasten's wrappers are allowed."""
    function, _ = unwrapped(function)
    if isinstance(function, types.BuiltinFunctionType):
        return function.__module__ in (None, package) or function.__module__.startswith(package + ".")
    if not str(getattr(function, "__module__", None)).startswith(package):
        return False
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    if not isinstance(function, types.FunctionType) and not os.path.isabs(file):
        return type(function).__module__ != "functools"  # compiled; False for an `lru_cache` around it
    module = sys.modules[package]
    place = os.path.realpath(str(module.__file__))
    root = os.path.dirname(place) + os.sep if hasattr(module, "__path__") else place
    return os.path.realpath(file).startswith(root)


def _file_of(function: Any) -> str:
    return os.path.realpath(getattr(getattr(function, "__code__", None), "co_filename", ""))
