"""The library calls that are memoized, and how they are patched.

A row is a module, the distribution it must come from, and what to do once it is imported. A module of the same name from
anywhere else, such as a user's own `cv2.py`, is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, NamedTuple

from hasten.data.memo import arrays, pillow, remote_calls, volumes
from hasten.data.memo.memo import Memo, use_in_process
from hasten.patches import Patches

Install = Callable[[Any, ModuleType, bytes], None]
"""Receives patches, the module, and bytes that identify its release."""


class Row(NamedTuple):
    """One library to memoize."""

    module: str
    distributions: tuple[str, ...]
    install: Install


TABLE: tuple[Row, ...] = (
    Row("PIL.Image", ("pillow", "pillow-simd"), pillow.install),
    *(Row(*row) for row in arrays.ROWS),
    *(Row(*row) for row in volumes.ROWS),
    Row("fsspec.spec", ("fsspec",), remote_calls.install),
)


def install(patches: Any) -> None:
    """Memoize every library of the table, now if it is imported, or when it is."""
    for row in TABLE:
        patches.after_import(row.module, functools.partial(_install_row, patches, row))


def hold_installed() -> Callable[[], None]:
    """Memoize the libraries in this process; they are restored when every holder has called the returned function."""
    with _holding.threads:
        if not _holding.count:
            _holding.patches = Patches()
            install(_holding.patches)
        _holding.count += 1
    is_held = [True]

    def release() -> None:
        with _holding.threads:
            if is_held:
                is_held.pop()
                _holding.count -= 1
                if not _holding.count:
                    _holding.patches.undo()

    return release


class _Holding:
    """Counts the holders of this process's patches."""

    def __init__(self) -> None:
        self.count = 0
        self.patches = Patches()
        self.threads = threading.RLock()  # garbage collection may release inside a locked section


_holding = _Holding()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_holding.threads.acquire,
        after_in_parent=_holding.threads.release,
        after_in_child=_holding.threads.release,
    )


@contextlib.contextmanager
def memoizing(memo: Memo) -> Generator[None]:
    """Use a memo for the library calls of this process, and of processes it forks, for the block."""
    release = hold_installed()
    use_in_process(memo)
    try:
        yield
    finally:
        use_in_process(None)
        release()


def _install_row(patches: Any, row: Row, module: ModuleType) -> None:
    release = release_of(module, row.distributions)
    if release is not None:
        row.install(patches, module, release)


def release_of(module: ModuleType, distributions: tuple[str, ...]) -> bytes | None:
    """Return the release of a module; None if it does not come from one of these distributions."""
    file = getattr(module, "__file__", None)
    if not file:
        return None
    for name in distributions:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        root = os.path.realpath(str(found.locate_file("")))
        if os.path.realpath(file).startswith(root + os.sep) and _is_installed(root):
            return f"{name} {found.version} {module.__name__}".encode()
    return None


def _is_installed(root: str) -> bool:
    """Whether a folder is one where packages are installed, not the script's own.

    A Jupyter kernel is a script in the folder of the packages, so that folder is known by its name, too.
    """
    if root in {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
        return True
    script = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv and sys.argv[0] else os.getcwd()
    return root not in (os.path.realpath(script), os.path.realpath(os.getcwd()))
