"""Serve what is opened for reading through fsspec from the local disk: `fsspec.open`, `fs.open`, `fs.cat_file`.

Only while samples are built: what else a script reads, such as a checkpoint, may be rewritten while it runs.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import threading
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import Any

from torch.utils.data import get_worker_info

from hasten.data.memo.download import directly, is_direct, of_this_process, protocol_of
from hasten.data.memo.memo import current

PASSED = {"block_size", "cache_options", "cache_type", "compression", "size"}  # how to read, not what
Opened = list[tuple[Any, str]]
"""File systems, and the paths that were opened there."""

_thread = threading.local()


class RemoteFile(io.BufferedReader):
    """The local file of a remote object, with the attributes of fsspec's open files."""

    def __init__(self, fs: Any, path: str, local: str) -> None:
        super().__init__(io.FileIO(local))
        self.fs = fs
        self.path = path
        self.size = os.fstat(self.fileno()).st_size

    def info(self) -> Any:
        """Return what the file system says of the object."""
        return of_this_process(self.fs).info(self.path)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.fs.open, (self.path, "rb")


@contextlib.contextmanager
def building_samples() -> Generator[None]:
    """Serve what this thread opens in the block. A loader's worker process builds samples all the time."""
    before = getattr(_thread, "is_building", False)
    _thread.is_building = True
    try:
        yield
    finally:
        _thread.is_building = before


@contextlib.contextmanager
def noting() -> Generator[Opened]:
    """Note which remote objects this thread opens in the block."""
    opened: Opened = []
    _thread.opened = opened
    try:
        yield opened
    finally:
        _thread.opened = None


def install(patches: Any, found: ModuleType, release: bytes) -> None:
    """Patch fsspec, and the file systems that exist already."""
    patches.wrap(found.AbstractFileSystem, "open", _opening)
    kind: Any = found._Cached  # the class of all file systems' classes
    patches.wrap(kind, "__call__", functools.partial(_creating, patches))
    for instance in _instances(found.AbstractFileSystem):
        _patch(instance, patches)


def _instances(kind: Any) -> Iterator[Any]:
    yield from list(getattr(kind, "_cache", {}).values())
    for one in kind.__subclasses__():
        yield from _instances(one)


def _is_served(fs: Any) -> bool:
    memo = current()
    if memo is None or memo.remote is None or is_direct() or protocol_of(fs) is None:
        return False
    return getattr(_thread, "is_building", False) or get_worker_info() is not None


def _local(fs: Any, path: Any) -> str | None:
    """Return the local file of an object; None if it is to be read directly."""
    memo = current()
    path = fs._strip_protocol(path)
    if memo is None or memo.remote is None or not isinstance(path, str):
        return None
    if getattr(_thread, "opened", None) is not None:
        _thread.opened.append((fs, path))
    return memo.remote.open(fs, path)


def _opening(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def open(self: Any, path: Any, mode: str = "rb", *arguments: Any, **named: Any) -> Any:
        if not _is_served(self):
            return original(self, path, mode, *arguments, **named)
        is_plain = mode == "rb" and not any(arguments) and named.get("compression") is None
        if is_plain and named.keys() <= PASSED and (local := _local(self, path)) is not None:
            with contextlib.suppress(
                FileNotFoundError
            ):  # it has changed just now, and another process has removed it
                return RemoteFile(self, path, local)
        return original(of_this_process(self), path, mode, *arguments, **named)

    return open


def _creating(patches: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(cls: Any, *arguments: Any, **named: Any) -> Any:
        instance = original(cls, *arguments, **named)
        _patch(instance, patches)
        return instance

    return __call__


def _patch(fs: Any, patches: Any) -> None:
    """Patch `cat_file`, which asynchronous file systems have in each instance; the others' calls `open`."""
    known = vars(fs).get("cat_file") if hasattr(fs, "__dict__") else None
    if known is None or protocol_of(fs) is None or hasattr(known, "is_hastens"):
        return

    @functools.wraps(known)
    def cat_file(path: Any, *arguments: Any, **named: Any) -> Any:
        if not _is_served(fs):
            return known(path, *arguments, **named)
        is_whole = not arguments and not any(value is not None for value in named.values())
        if is_whole and (local := _local(fs, path)) is not None:
            with contextlib.suppress(FileNotFoundError), open(local, "rb") as file:
                return file.read()
        usable = of_this_process(fs)
        with directly():
            return (known if usable is fs else usable.cat_file)(path, *arguments, **named)

    cat_file.is_hastens = True  # type: ignore[attr-defined]
    patches.set(fs, "cat_file", cat_file)
