"""What a script sees of the disk if its writes go elsewhere: what it wrote, and what existed before and is not hidden.

A file or folder at /a/b is written to `written/a/b`. What is removed, renamed or replaced is only hidden: a mark in `hidden`
says that the real one is not visible any more, nor anything below it. Both are on disk, so that all processes of a script see
the same. Real files are never changed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

REAL = ("/dev", "/proc", "/sys", "/run")
MOST_LINKS = 40  # one after another, as in Linux
Function = Callable[..., Any]

# Kept from before they are patched.
raw_stat, raw_lstat, raw_listdir, raw_scandir, raw_os_open = os.stat, os.lstat, os.listdir, os.scandir, os.open
raw_mkdir, raw_rmdir, raw_rename, raw_readlink = os.mkdir, os.rmdir, os.rename, os.readlink


class View:
    """What a script sees of the disk, and where it writes."""

    def __init__(self, folder: str, *, real: Sequence[str]) -> None:
        self.written, self._marks = os.path.join(folder, "written"), os.path.join(folder, "hidden")
        self._real = tuple(path.rstrip("/") + "/" for path in (*REAL, *real))
        for made in (self.written, self._marks):
            os.makedirs(made, exist_ok=True)
        self._hidden: set[str] = set()
        self._read_at = -1

    def place(self, path: object) -> str | None:
        """A path's absolute name; None for what is no path, or stays real."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        name = os.path.abspath(os.fsdecode(path))
        return None if (name + "/").startswith(self._real) else name

    def seen(self, path: Any, *, follow: bool = True) -> Any:
        """Where what the script calls by this path is to be read; what a link leads to, if it is to `follow`."""
        place = self.place(path)
        if place is None:
            return path
        written = self.written + place
        if exists(written):
            goal = _goal(written) if follow else None
            return written if goal is None else self.seen(os.path.join(os.path.dirname(place), goal))
        if self.is_hidden(place):
            return written
        linked = _link(place, follow=follow)
        if linked is not None:  # a link, or a folder above that is one, may lead to what was written
            return self.seen(linked, follow=follow)
        return path

    def is_hidden(self, place: str) -> bool:
        """Whether the real thing at a place, or a folder above it, was removed or renamed."""
        changed = raw_stat(self._marks).st_mtime_ns
        if changed != self._read_at:
            self._hidden, self._read_at = set(raw_listdir(self._marks)), changed
        if not self._hidden:
            return False
        parts = place.split("/")
        return any(_mark("/".join(parts[:n])) in self._hidden for n in range(2, len(parts) + 1))

    def hide(self, place: str) -> None:
        """The real thing at this place is not to be seen any more."""
        os.close(raw_os_open(os.path.join(self._marks, _mark(place)), os.O_CREAT | os.O_WRONLY, 0o600))
        self._read_at = -1

    def target(self, path: Any, *, keeps: bool) -> Any:
        """Where a file is to be written; with what is in it, if that `keeps`. Its folder is made if the script sees one."""
        place = self.place(path)
        if place is None:
            return path
        here, written = self.seen(path), self.written + place
        goal = _goal(self.seen(path, follow=False))
        if goal is not None:  # what it leads to is written
            return self.target(os.path.join(os.path.dirname(place), goal), keeps=keeps)
        if not exists(written):
            self._make_above(place)
            if keeps and here != written and exists(here) and not is_folder_at(here):
                shutil.copy2(here, written)
        return written

    def tree(self, path: Any) -> Any:
        """Where a whole folder, with all that is seen in it, can be written to."""
        place = self.place(path)
        if place is None:
            return path
        written = self.written + place
        here = self.seen(path)
        if not is_folder_at(here):
            return self.target(path, keeps=True)
        self.folder(place)
        for name in self.names(path):
            inner = os.path.join(place, name)
            found = self.seen(inner)
            if is_folder_at(found) and not os.path.islink(found):
                self.tree(inner)
            elif not exists(self.written + inner):
                shutil.copy2(found, self.written + inner, follow_symlinks=False)
        return written

    def names(self, path: Any) -> list[str]:
        """What is in a folder, as the script sees it. Raises OSError as os.listdir does."""
        place = self.place(path)
        assert place is not None
        here = self.seen(path)
        found = list(map(os.fsdecode, raw_listdir(here)))
        written = self.written + place
        if here == written and not self.is_hidden(place) and is_folder_at(place):
            found = [*raw_listdir(place), *found]
        return [n for n in dict.fromkeys(found) if exists(f"{written}/{n}") or not self.is_hidden(f"{place}/{n}")]

    def remove(self, path: Any, removed: Function) -> None:
        """Take away what was written, and hide what was not. `removed` is what refuses what cannot be removed."""
        place = self.place(path)
        if place is None:
            removed(path)
            return
        here, written = self.seen(path, follow=False), self.written + place
        is_folder = stat.S_ISDIR(raw_lstat(here).st_mode)  # raises where nothing is there
        if is_folder and removed is not raw_rmdir:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not is_folder and removed is raw_rmdir:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
        if is_folder and self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
        if exists(place):
            self.hide(place)
        if exists(written):
            removed(written)

    def rename(self, source: Any, target: Any) -> None:
        """Move a file or a folder, written or not."""
        if self.place(source) is None and self.place(target) is None:
            raw_rename(source, target)
            return
        here = self.seen(source, follow=False)
        is_folder = stat.S_ISDIR(raw_lstat(here).st_mode)
        place, goal = self.place(source), self.place(target)
        moved = source if place is None else self.tree(source) if is_folder else self._copied(place, here)
        if goal is None:
            shutil.move(moved, target)
        else:
            seen = self.seen(target)
            if is_folder and is_folder_at(seen) and self.names(target):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(target))
            self._make_above(goal)
            if exists(goal):
                self.hide(goal)
            raw_rename(moved, self.written + goal)
        if place is not None and exists(place):
            self.hide(place)

    def _copied(self, place: str, here: Any) -> str:
        """A file, or a link itself, among what was written."""
        written = self.written + place
        if not exists(written):
            self._make_above(place)
            shutil.copy2(here, written, follow_symlinks=False)
        return written

    def make_folder(self, path: Any, mode: int = 0o777) -> None:
        """A new folder."""
        place = self.place(path)
        if place is None:
            raw_mkdir(path, mode)
            return
        if exists(self.seen(path)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        self._make_above(place)
        raw_mkdir(self.written + place, mode)

    def folder(self, place: str) -> str:
        """Where a folder that the script sees can be written into."""
        written = self.written + place
        if not is_folder_at(written) and is_folder_at(self.seen(place)):
            os.makedirs(written, exist_ok=True)
            shutil.copystat(place, written)
        return written

    def _make_above(self, place: str) -> None:
        self.folder(os.path.dirname(place))


class Entries:
    """What os.scandir gives: entries of a folder, or of two."""

    def __init__(self, view: View, path: Any) -> None:
        place = view.place(path) or ""
        names = view.names(path)
        self._entries: Iterator[os.DirEntry[str]] = iter(())
        found: dict[str, os.DirEntry[str]] = {}
        for folder in (os.fspath(path), view.written + place):
            if is_folder_at(folder):
                with raw_scandir(folder) as entries:
                    found.update({os.fsdecode(entry.name): entry for entry in entries})
        self._entries = iter([found[name] for name in names if name in found])

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """There is nothing to close."""


def exists(path: Any) -> bool:
    """Whether anything is at a path, a broken link among it; by the real functions."""
    try:
        raw_lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _mark(place: str) -> str:
    return hashlib.blake2b(os.fsencode(place), digest_size=16).hexdigest()


def is_folder_at(path: Any) -> bool:
    """Whether a folder, or a link to one, is at a path; by the real functions."""
    try:
        return stat.S_ISDIR(raw_stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _goal(path: Any) -> str | None:
    """What a link says; None for anything else."""
    try:
        return os.fsdecode(raw_readlink(path))
    except (OSError, ValueError):
        return None


def _link(place: str, *, follow: bool = True) -> str | None:
    """Where a path leads, if a folder above it is a link, or it is one itself and is to be followed."""
    led, rest, left = "", place.split("/")[1:], MOST_LINKS
    last = None if follow else rest.pop()
    while rest:
        name = rest.pop(0)
        if name == "..":
            led = os.path.dirname(led).rstrip("/")
        elif name not in ("", "."):
            step = f"{led}/{name}"
            try:
                goal = raw_readlink(step) if left and stat.S_ISLNK(raw_lstat(step).st_mode) else None
            except OSError:
                goal = None
            if goal is None:
                led = step
            else:
                left -= 1
                led = "" if goal.startswith("/") else led
                rest = [*goal.split("/"), *rest]
    led = led if last is None else f"{led}/{last}"
    return led if led != place else None
