"""The folders in which results are kept."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from pathlib import Path

from hasten.errors import DirectoryError

RESULTS = Path(os.environ.get("HASTEN_RESULTS") or ".hasten").expanduser()
FOLLOWED = "followed.jsonl"  # below: runs under a plan, one a line


def new_folder(parent: Path, *, ending: str = "") -> Path:
    """A folder of its own for one result, named by the time. Raises DirectoryError when it cannot be made."""
    make_root(parent.parent)
    make_folder(parent)
    while True:
        # Two may begin in the same second, and in containers under the same process id.
        folder = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}{ending}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder


def make_root(root: Path) -> None:
    """Make the folder of all results, which git ignores."""
    make_folder(root)
    ignore = root / ".gitignore"
    if not ignore.exists():
        with contextlib.suppress(OSError):
            ignore.write_text("# Written by hasten.\n*\n", encoding="utf-8")


def make_folder(folder: Path) -> Path:
    """Make a folder for a run's files. Raises DirectoryError when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # it can be written to; of a name of its own, for others may be looking as well
    except OSError as error:
        raise DirectoryError(
            f"cannot write to {folder} ({error.strerror}); set HASTEN_RESULTS to a folder that you may write to"
        ) from None
    return folder
