"""hasten's cache folder, and checks that a folder is private."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


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
