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

    def resolved(self, path: object, *, follow: bool) -> str | None:
        """A path's absolute name without links, as the script sees them; the last part is one if it is not to `follow`.

        None for what is no path. Raises OSError as the system does where links lead to each other.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        name, rest, left = "", os.path.join(os.getcwd(), os.fsdecode(path)).split("/")[1:], MOST_LINKS
        while rest:
            part = rest.pop(0)
            if part == "..":
                name = os.path.dirname(name).rstrip("/")
            elif part not in ("", "."):
                name = f"{name}/{part}"
                goal = self._goal_at(name) if (rest or follow) and not self._is_real(name) else None
                if goal is not None and not left:  # to follow it would end at a real one
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
                if goal is not None:
                    left -= 1
                    name = "" if goal.startswith("/") else os.path.dirname(name).rstrip("/")
                    rest = [*goal.split("/"), *rest]
        return name or "/"

    def place(self, path: object, *, follow: bool = False) -> str | None:
        """The same; None for what stays real, too."""
        name = self.resolved(path, follow=follow)
        return None if name is None or self._is_real(name) else name

    def seen(self, path: Any, *, follow: bool = True) -> Any:
        """Where what the script calls by this path is to be read; what a link leads to, if it is to `follow`."""
        name = self.resolved(path, follow=follow)
        if name is None:
            return path
        written = self.written + name
        if not self._is_real(name) and (exists(written) or self.is_hidden(name)):
            return written
        given = os.fsdecode(path)
        # In `link/..` a link is followed whose name is gone.
        return path if name == os.path.abspath(given) and ".." not in given else name

    def _is_real(self, name: str) -> bool:
        return (name + "/").startswith(self._real)

    def _goal_at(self, name: str) -> str | None:
        """What the link at a place says, as the script sees it; None for anything else."""
        written = self.written + name
        if exists(written):
            return _goal(written)
        goal = _goal(name)
        return None if goal is None or self.is_hidden(name) else goal

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
        place, here = self.place(path, follow=True), self.seen(path)
        if place is None:
            return here
        written = self.written + place
        if not exists(written):
            self._make_above(place)
            if keeps and here != written and exists(here) and not is_folder_at(here):
                shutil.copy2(here, written)
        return written

    def tree(self, path: Any) -> Any:
        """Where a whole folder, with all that is seen in it, can be written to."""
        place, here = self.place(path, follow=True), self.seen(path)
        if place is None:
            return here
        if not is_folder_at(here):
            return self.target(path, keeps=True)
        written = self.folder(place)
        for name in self.names(place):
            inner = os.path.join(place, name)
            found = self.seen(inner, follow=False)
            if is_folder_at(found) and _goal(found) is None:
                self.tree(inner)
            elif not exists(self.written + inner):
                shutil.copy2(found, self.written + inner, follow_symlinks=False)
        return written

    def names(self, path: Any) -> list[str]:
        """What is in a folder, as the script sees it. Raises OSError as os.listdir does."""
        place, here = self.place(path, follow=True), self.seen(path)
        assert place is not None
        found = list(map(os.fsdecode, raw_listdir(here)))
        written = self.written + place
        if here == written and not self.is_hidden(place) and is_folder_at(place):
            found = [*raw_listdir(place), *found]
        return [n for n in dict.fromkeys(found) if exists(f"{written}/{n}") or not self.is_hidden(f"{place}/{n}")]

    def remove(self, path: Any, removed: Function) -> None:
        """Take away what was written, and hide what was not. `removed` is what refuses what cannot be removed."""
        place, here = self.place(path), self.seen(path, follow=False)
        if place is None:
            removed(here)
            return
        written = self.written + place
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
        place, here = self.place(source), self.seen(source, follow=False)
        goal, there = self.place(target), self.seen(target, follow=False)
        if place is None and goal is None:
            raw_rename(here, there)
            return
        is_folder = stat.S_ISDIR(raw_lstat(here).st_mode)
        moved = here if place is None else self.tree(source) if is_folder else self.copied(place, here)
        if goal is None:
            shutil.move(moved, there)
        else:
            if is_folder and is_folder_at(there) and self.names(target):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(target))
            self._make_above(goal)
            if exists(goal):
                self.hide(goal)
            raw_rename(moved, self.written + goal)
        if place is not None and exists(place):
            self.hide(place)

    def copied(self, place: str, here: Any) -> str:
        """A file, or a link itself, among what was written."""
        written = self.written + place
        if not exists(written):
            self._make_above(place)
            shutil.copy2(here, written, follow_symlinks=False)
        return written

    def make_folder(self, path: Any, mode: int = 0o777) -> None:
        """A new folder."""
        place, here = self.place(path), self.seen(path, follow=False)
        if place is None:
            raw_mkdir(here, mode)
            return
        if exists(here):
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


class Entry(os.PathLike[Any]):
    """An os.DirEntry with the path that the script gave."""

    def __init__(self, entry: os.DirEntry[str], path: Any) -> None:
        self._entry = entry
        self.name: Any = os.fsencode(entry.name) if isinstance(path, bytes) else entry.name
        self.path: Any = os.path.join(path, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


class Entries:
    """What os.scandir gives: entries of a folder, or of two."""

    def __init__(self, view: View, path: Any) -> None:
        place = view.place(path, follow=True) or ""
        names = view.names(path)
        found: dict[str, os.DirEntry[str]] = {}
        for folder in (place, view.written + place):
            if is_folder_at(folder):
                with raw_scandir(folder) as entries:
                    found.update({entry.name: entry for entry in entries})
        given = os.fspath(path)
        self._entries = iter([Entry(found[name], given) for name in names if name in found])

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __next__(self) -> Entry:
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
