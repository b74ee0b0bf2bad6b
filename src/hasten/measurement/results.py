"""Where results are kept.

In: the working directory. Out: folders that can be written to. Refuses to know what is in them.
"""

from __future__ import annotations

from pathlib import Path

from hasten.errors import DirectoryError

RESULTS = Path(".hasten")
FOLLOWED = "followed.jsonl"  # below: runs under a plan, one a line


def make_folder(folder: Path) -> Path:
    """Make a folder for a run's files. Raises DirectoryError when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise DirectoryError(
            f"cannot write to {folder} ({error.strerror}); run from a directory that you may write to"
        ) from None
    return folder
