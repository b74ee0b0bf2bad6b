"""hasten's folder in the user's cache folder, and folders that nobody else can look into.

In: the environment. Out: paths. Refuses to make anything in the working directory.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


def cache_folder() -> Path:
    """$HASTEN_CACHE, or else `hasten` in the platform's cache folder. Raises RuntimeError where there is no home folder."""
    if chosen := os.environ.get("HASTEN_CACHE"):
        return Path(chosen).expanduser()
    return user_cache() / "hasten"


def user_cache() -> Path:
    """The platform's cache folder. Raises RuntimeError where there is no home folder."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def is_private(path: Path) -> bool:
    """Whether a file or folder, no link, is this user's, and nobody else can write to it."""
    status = os.lstat(path)
    if os.name != "posix":
        return True
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not is_shared and not stat.S_ISLNK(status.st_mode)
