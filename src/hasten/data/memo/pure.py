"""Functions marked as pure by the user: their result depends only on their arguments and the files these name."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import types
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from hasten.data.memo.calls import describe, plain_bytes
from hasten.data.memo.codec import NotStorableError, encode
from hasten.data.memo.keys import identity_of_bytes, identity_of_path, identity_of_status, key_of, size_of
from hasten.data.memo.memo import current, get_or_compute, using

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("hasten")

NUM_CHECKED = 8  # cached results to compare, per function and process


class _NotConstantError(Exception):
    """An argument does not consist of plain values, arrays and tensors."""


class _RecentlyChangedError(Exception):
    """A file was changed a moment ago."""


def pure(function: F) -> F:
    """Mark a function as pure: a call with equal arguments may return the result of an earlier call.

    You assert that the result depends only on the arguments, on the content of files whose paths are arguments, and on the
    function's own code. Calls with folders as arguments are not cached. With a cache, the result is stored under a key of all
    three; without one, the function runs unchanged. Every caller gets a separate copy. In each process, the first results from
    the cache are computed again and compared; if they differ, the function is no longer cached, with a warning.

    Args:
        function: takes and returns plain values, paths, bytes, arrays, tensors, and tuples, lists and dicts of them. Calls
            with other arguments are not cached.

    Returns:
        The same function, cached.
    """
    code = _digest_of(function)
    check = _Check(function)

    @functools.wraps(function)
    def cached(*arguments: Any, **named: Any) -> Any:
        if current() is None or check.has_failed or code is None:
            return function(*arguments, **named)
        files: list[tuple[Any, bytes]] = []
        try:
            described = _describe((arguments, sorted(named.items())), files)
        except (_NotConstantError, _RecentlyChangedError):
            return function(*arguments, **named)
        is_computed = False

        def compute() -> Any:
            nonlocal is_computed
            is_computed = True
            return function(*arguments, **named)

        value = get_or_compute(
            key_of(code, described),
            compute,
            is_unchanged=lambda: all(identity_of_path(path) == identity for path, identity in files),
            source_bytes=sum(size_of(identity) for _, identity in files),
        )
        return value if is_computed or not check.num_left else check.compared(value, compute)

    cached.is_pure = True  # type: ignore[attr-defined]
    return cached  # type: ignore[return-value]


class _Check:
    """Compares the first results from the cache with newly computed ones."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self.num_left = NUM_CHECKED
        self.has_failed = False

    def compared(self, stored: Any, compute: Callable[[], Any]) -> Any:
        """Compute the result, compare it with `stored`, which came from the cache, and return it."""
        self.num_left -= 1
        expected = _bytes_of(stored)  # before the function can write to its arguments
        with using(None):
            value = compute()
        if _bytes_of(value) != expected:
            self.has_failed = True
            log.warning(
                "%s is no longer cached: called again with equal arguments, it returned another result", self.name
            )
        return value


def _bytes_of(value: Any) -> bytes | None:
    try:
        return b"".join(encode(value).pieces)
    except NotStorableError:
        return None


def mark(patches: Any, names: list[str]) -> None:
    """Mark functions as pure that a plan names as "package.module:function", once their module is imported."""
    for name in names:
        module, _, path = name.partition(":")
        patches.after_import(module, functools.partial(_mark, patches, path))


def _mark(patches: Any, path: str, module: types.ModuleType) -> None:
    *owners, name = path.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    function = getattr(owner, name, None)
    if not callable(function):
        log.warning("[cache] pure: %s has no function %s", module.__name__, path)
    elif not getattr(function, "is_pure", False):
        patches.set(owner, name, pure(function))


def _describe(value: Any, files: list[tuple[Any, bytes]]) -> bytes:
    """Return a digest of an argument; appends the files it names. Raises _NotConstantError and _RecentlyChangedError."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return _describe_path(value, files)
    if type(value) in (tuple, list):
        return key_of(type(value).__name__.encode(), *(_describe(one, files) for one in value))
    if type(value) is dict:
        return key_of(b"dict", *(_describe(pair, files) for pair in value.items()))
    plain = describe(value)
    if plain is not None:
        return key_of(b"plain", plain.encode(errors="surrogatepass"))
    try:
        return _describe_data(value)
    except (TypeError, RuntimeError) as error:  # a tensor that NumPy cannot view
        raise _NotConstantError from error


def _describe_path(value: Any, files: list[tuple[Any, bytes]]) -> bytes:
    """Return a digest of text or bytes; if it names a file, the content counts in addition to the name."""
    name = f"{type(value).__module__}.{type(value).__qualname__} ".encode()
    name += os.fsencode(value) if isinstance(value, os.PathLike) else repr(value).encode(errors="surrogatepass")
    try:
        status = os.stat(value)
    except (OSError, ValueError):
        return key_of(b"text", name)
    identity = identity_of_status(status, value)
    if identity is None:  # a folder, whose files may change, or a recently changed file
        raise _RecentlyChangedError
    files.append((value, identity))
    return key_of(b"file", name, identity)


def _describe_data(value: Any) -> bytes:
    if type(value) is bytearray:
        return key_of(b"bytearray", identity_of_bytes(plain_bytes(value)))
    if type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided:
        if value.dtype == torch.bfloat16 or value.requires_grad or vars(value):
            raise _NotConstantError
        return key_of(b"tensor", _describe_data(value.numpy()))
    if type(value) is np.ndarray and value.dtype.kind in "biufc":
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        layout = repr((value.dtype.str, value.shape, value.strides)).encode()
        return key_of(b"array", layout, identity_of_bytes(data.data))
    raise _NotConstantError


def _digest_of(function: Callable[..., Any]) -> bytes | None:
    """Return a digest of a function's name, code, defaults and constants, which changes when its code is edited.

    Returns None if the function depends on enclosing variables that are not plain values.
    """
    digest = hashlib.blake2b(digest_size=16)
    code = getattr(function, "__code__", None)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
    digest.update(name.encode())
    if code is not None:
        _add_code(digest, code)
    cells = getattr(function, "__closure__", None) or ()
    around = getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)
    try:
        digest.update(_describe(around, []))
        for cell in cells:
            value = cell.cell_contents
            part = _digest_of(value) if isinstance(value, types.FunctionType) else _describe(value, [])
            if part is None:
                return None
            digest.update(part)
    except (_NotConstantError, _RecentlyChangedError, ValueError):  # ValueError: a cell is still empty
        return None
    return digest.digest()


def _add_code(digest: Any, code: types.CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(digest, constant)
        else:
            digest.update(repr(constant).encode(errors="surrogatepass"))
