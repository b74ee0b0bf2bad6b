"""Have Python's file functions, and libraries that open files themselves, write into a folder (see `view`).

Temporary folders, device folders and the caches of libraries stay real.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import glob
import io
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.folders import user_cache
from hasten.patches import Patches
from hasten.sandbox.view import (
    Entries,
    Function,
    View,
    exists,
    is_folder_at,
    raw_listdir,
    raw_lstat,
    raw_mkdir,
    raw_os_open,
    raw_rmdir,
    raw_scandir,
)

NEW = os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND  # any of them: a file is written
raw_open, raw_unlink, raw_link, raw_symlink = io.open, os.unlink, os.link, os.symlink
IN_PATHLIB = (
    "stat", "open", "listdir", "scandir", "chmod", "mkdir", "unlink", "link", "rmdir", "rename", "replace", "symlink",
    "readlink",
)  # fmt: skip
VIEW_VARIABLE = "HASTEN_VIEW"
INSIDE_VARIABLE = "HASTEN_INSIDE"  # see `enter`
# What libraries download, compile and keep for later runs stays: else every launch would do it again.
CACHES = (
    "HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "KERAS_HOME",
)  # fmt: skip
IN_HOME = (".triton", ".nv", ".keras", ".config/matplotlib")


def caches() -> list[str]:
    """Folders in which libraries keep what they have downloaded or compiled."""
    found = [os.environ[name] for name in CACHES if os.environ.get(name)]
    with contextlib.suppress(RuntimeError):
        found += [user_cache(), *(Path.home() / name for name in IN_HOME)]
    return [os.path.realpath(path) for path in found if os.path.isdir(path)]


def is_inside() -> bool:
    """Whether an overlay covers what this process sees: one that a service started, such as Slurm's, is outside of it."""
    with contextlib.suppress(OSError):
        return os.environ.get(INSIDE_VARIABLE) == os.readlink("/proc/self/ns/mnt")
    return False


def install_from_environment() -> bool:
    """Do it in this process, once, as the environment says; whether it was not done before."""
    folder = os.environ.get(VIEW_VARIABLE)
    if folder is None or getattr(io.open, "__name__", "") == "opening":
        return False
    install(folder, Patches(), real=[os.path.dirname(os.path.dirname(folder)), *caches()])
    return True


def install(folder: str, patches: Patches, *, real: Sequence[str]) -> None:
    """Have everything in this process that opens files go by a view of them."""
    view = View(folder, real=[folder, *real])

    def opening(file: Any, mode: str = "r", *arguments: Any, **settings: Any) -> Any:
        if isinstance(file, int) or settings.get("opener") is not None:
            return raw_open(file, mode, *arguments, **settings)
        writes = any(letter in mode for letter in "wax+")
        if "x" in mode and exists(view.seen(file)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(file))
        place = view.target(file, keeps="w" not in mode) if writes else view.seen(file)
        return raw_open(place, mode, *arguments, **settings)

    def opening_low(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            return raw_os_open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_EXCL and exists(view.seen(path)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        writes = flags & NEW and not is_folder_at(view.seen(path))
        keeps = not (flags & os.O_TRUNC and flags & os.O_CREAT)  # what is not made must be there
        return raw_os_open(view.target(path, keeps=keeps) if writes else view.seen(path), flags, mode)

    def listing(path: Any = ".") -> Any:
        if view.place(path, follow=True) is None:
            return raw_listdir(view.seen(path))
        names = view.names(path)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def scanning(path: Any = ".") -> Any:
        return raw_scandir(view.seen(path)) if view.place(path, follow=True) is None else Entries(view, path)

    def removing(original: Function) -> Function:
        @functools.wraps(original)
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None:
                original(path, dir_fd=dir_fd)
            else:
                view.remove(path, original)

        return remove

    def renaming(original: Function) -> Function:
        @functools.wraps(original)
        def rename(src: Any, dst: Any, **settings: Any) -> None:
            if settings:
                original(src, dst, **settings)
            else:
                view.rename(src, dst)

        return rename

    def making(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            raw_mkdir(path, mode, dir_fd=dir_fd)
        else:
            view.make_folder(path, mode)

    def linking(src: Any, dst: Any, *arguments: Any, **settings: Any) -> None:
        place, here = view.place(dst), view.seen(dst, follow=False)
        if place is None:
            raw_symlink(src, here, *arguments, **settings)
            return
        if exists(here):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(dst))
        view.folder(os.path.dirname(place))
        raw_symlink(src, view.written + place)

    def copying(src: Any, dst: Any, **settings: Any) -> None:
        there = view.seen(dst, follow=False)
        if view.place(src) is None and view.place(dst) is None:
            raw_link(view.seen(src, follow=False), there, **settings)
            return
        if exists(there):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(dst))
        shutil.copy2(view.seen(src), view.target(dst, keeps=False))

    for owner in (builtins, io):
        patches.set(owner, "open", opening)
    patches.set(os, "open", opening_low)
    patches.set(os, "listdir", listing)
    patches.set(os, "scandir", scanning)
    patches.set(os, "mkdir", making)
    patches.set(os, "symlink", linking)
    patches.set(os, "link", copying)
    patches.set(shutil, "_use_fd_functions", False)
    for name in ("remove", "unlink", "rmdir"):
        patches.set(os, name, removing(raw_rmdir if name == "rmdir" else raw_unlink))
    for name in ("rename", "replace"):
        patches.wrap(os, name, renaming)
    for name in ("stat", "access", "listxattr", "getxattr", "statvfs"):
        patches.wrap(os, name, lambda original: _by(original, view.seen))
    for name in ("lstat", "readlink"):
        patches.wrap(os, name, lambda original: _by(original, view.seen, follow=False))
    patches.wrap(os, "chdir", lambda original: _by(original, functools.partial(_entered, view)))
    for name in ("truncate", "chmod", "utime", "chown", "lchown", "setxattr", "removexattr"):
        patches.wrap(os, name, lambda original: _by(original, functools.partial(_changed, view)))
    _follow_bound(patches)
    _follow_libraries(view, patches)


def _entered(view: View, path: Any, *, follow: bool) -> Any:
    """A folder to work in: the real one, where the script sees that, so that a path from there is not one of ours."""
    place = view.place(path, follow=True)
    is_real = place is not None and is_folder_at(place) and not view.is_hidden(place)
    return place if is_real else view.seen(path, follow=follow)


def _changed(view: View, path: Any, *, follow: bool) -> Any:
    """Where a file or folder can be changed in place."""
    here, place = view.seen(path, follow=follow), view.place(path, follow=follow)
    if place is None or not exists(here):
        return here
    return view.folder(place) if is_folder_at(here) and not os.path.islink(here) else view.copied(place, here)


def _by(original: Function, where: Callable[..., Any], *, follow: bool = True) -> Function:
    @functools.wraps(original)
    def call(*arguments: Any, **settings: Any) -> Any:
        if not arguments or settings.get("dir_fd") is not None or isinstance(arguments[0], int):
            return original(*arguments, **settings)
        follows = follow and settings.get("follow_symlinks", True)
        return original(where(arguments[0], follow=follows), *arguments[1:], **settings)

    return call


def _follow_bound(patches: Patches) -> None:
    """The pathlib of Python 3.10 and 3.13 holds functions of its own."""
    accessor, globber = getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None)
    for name in IN_PATHLIB if accessor is not None else ():
        if hasattr(accessor, name):
            patches.set(accessor, name, staticmethod(getattr(io if name == "open" else os, name)))
    for name, bound in (("lstat", raw_lstat), ("scandir", raw_scandir)):
        if globber is not None and getattr(globber, name, None) is bound:
            patches.set(globber, name, staticmethod(getattr(os, name)))


def _follow_libraries(view: View, patches: Patches) -> None:
    """Functions that open files without Python's help."""

    def writes(position: int, keyword: str, *, keeps: bool = False) -> Callable[[Function], Function]:
        return lambda original: _given(original, position, keyword, lambda path: view.target(path, keeps=keeps))

    def reads(position: int, keyword: str) -> Callable[[Function], Function]:
        return lambda original: _given(original, position, keyword, view.seen)

    def torch(module: ModuleType) -> None:
        patches.wrap(module, "save", writes(1, "f"))
        patches.wrap(module, "load", reads(0, "f"))
        patches.wrap(module.jit.RecursiveScriptModule, "save", writes(1, "f"))
        patches.wrap(module.jit, "load", reads(0, "f"))

    def safetensors(module: ModuleType) -> None:
        for name in ("save_file", "save_model"):
            patches.wrap(module, name, writes(1, "filename"))
        patches.wrap(module, "load_file", reads(0, "filename"))

    def h5py(module: ModuleType) -> None:
        def opens(original: Function) -> Function:
            @functools.wraps(original)
            def open_file(self: Any, name: Any, mode: str = "r", *arguments: Any, **settings: Any) -> Any:
                place = view.seen(name) if mode == "r" else view.target(name, keeps=not mode.startswith("w"))
                return original(self, place, mode, *arguments, **settings)

            return open_file

        patches.wrap(module.File, "__init__", opens)

    def sqlite(module: ModuleType) -> None:
        def connects(original: Function) -> Function:
            @functools.wraps(original)
            def connect(database: Any, *arguments: Any, **settings: Any) -> Any:
                is_file = not settings.get("uri") and database not in (":memory:", "", b"")
                for ending in ("-wal", "-journal") if is_file else ():
                    log = os.fsdecode(database) + ending
                    if exists(view.seen(log)):
                        view.target(log, keeps=True)
                return original(view.target(database, keeps=True) if is_file else database, *arguments, **settings)

            return connect

        patches.wrap(module, "connect", connects)

    def lmdb(module: ModuleType) -> None:
        def opens(original: Function) -> Function:
            @functools.wraps(original)
            def open_base(path: Any, *arguments: Any, **settings: Any) -> Any:
                if not settings.get("readonly"):
                    return original(view.tree(path), *arguments, **settings)
                settings["lock"] = False  # a lock would be a file beside the data
                return original(view.seen(path), *arguments, **settings)

            return open_base

        for name in ("open", "Environment"):
            patches.wrap(module, name, opens)

    patches.after_import("torch", torch)
    patches.after_import("safetensors.torch", safetensors)
    patches.after_import("h5py", h5py)
    patches.after_import("sqlite3", sqlite)
    patches.after_import("lmdb", lmdb)
    patches.after_import("cv2", lambda module: patches.wrap(module, "imwrite", writes(0, "filename")))


def _given(original: Function, position: int, keyword: str, where: Callable[[Any], Any]) -> Function:
    @functools.wraps(original)
    def call(*arguments: Any, **settings: Any) -> Any:
        if keyword in settings:
            settings[keyword] = where(settings[keyword])
        elif len(arguments) > position:
            arguments = (*arguments[:position], where(arguments[position]), *arguments[position + 1 :])
        return original(*arguments, **settings)

    return call
