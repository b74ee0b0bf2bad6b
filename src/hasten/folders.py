"""hasten's cache folder, and checks that a folder is private."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "examples"
BUNDLED = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1] / "examples" / "case_studies"

OWN_SCRIPT = "hasten diagnose train.py  (your own script)"  # the command that follows one of them


SESSION = "session"  # instead of a command, of what was measured in a notebook or an interpreter


def is_bundled(command: Sequence[str]) -> bool:
    """Whether a command runs one of the scripts that hasten brings along."""
    return any(word.endswith(".py") and Path(word).resolve().parent == BUNDLED for word in command)


def cache_folder() -> Path:
    """$HASTEN_CACHE, or `hasten` in the platform's cache folder. Raises RuntimeError without a home folder."""
    if chosen := os.environ.get("HASTEN_CACHE"):
        return Path(chosen).expanduser()
    return user_cache() / "hasten"


def user_cache() -> Path:
    """The platform's cache folder. Raises RuntimeError without a home folder."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def is_private(path: Path) -> bool:
    """Whether a file or folder is not a symbolic link, belongs to this user, and is writable by nobody else."""
    status = os.lstat(path)
    if os.name != "posix":
        return True
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not is_shared and not stat.S_ISLNK(status.st_mode)
