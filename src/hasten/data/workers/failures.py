"""Describe failed samples and dead workers, and choose substitutes for failed samples."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from hasten.data.generators import mix

PATHS = ("samples", "imgs", "image_paths", "img_paths", "paths", "files", "filenames", "images")
MAX_SUBSTITUTES = 10  # if this many of a batch fail, the cause is not a corrupt file


def path_of(dataset: Any, index: Any) -> str | None:
    """Return the file of a sample if the dataset has a list of files; otherwise None."""
    try:
        while isinstance(dataset, (Subset, ConcatDataset)):
            dataset, index = inner_dataset(dataset, index)
        for name in PATHS:
            listed = getattr(dataset, name, None)
            if isinstance(listed, (list, tuple)):
                entry = listed[index]
                entry = entry[0] if isinstance(entry, (list, tuple)) else entry
                if isinstance(entry, (str, os.PathLike)):
                    return os.fspath(entry)
    except Exception:  # a dataset's own lists may be anything
        return None
    return None


def inner_dataset(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Return the dataset that a Subset or a ConcatDataset takes a sample from, and the sample's index there."""
    if isinstance(dataset, Subset):
        return dataset.dataset, dataset.indices[index]
    before = 0
    for part, end in zip(dataset.datasets, dataset.cumulative_sizes):
        if index < end:
            return part, index - before
        before = end
    return dataset.datasets[-1], index - before


def name_sample(dataset: Any, index: Any) -> str:
    """Return "sample 17 (photos/17.jpg)", or "sample 17" if the file is not known."""
    path = path_of(dataset, index)
    return f"sample {index!r} ({path})" if path else f"sample {index!r}"


def add_sample_note(error: BaseException | None, dataset: Any, index: Any) -> None:
    """Add a note to an exception that names the sample being built (Python 3.11). Its type and message do not change."""
    add_note = getattr(error, "add_note", None)
    if add_note is not None:
        add_note(f"while building {name_sample(dataset, index)}")


def substitute(indices: Sequence[Any], row: int, attempt: int, seed: int) -> Any | None:
    """Choose a substitute for the sample in `row`: another sample of the same batch, the same one every time.

    Returns None if the batch has no other sample, or too many attempts have failed.
    """
    others = [index for index in indices if index != indices[row]]
    if not others or attempt >= MAX_SUBSTITUTES:
        return None
    return others[mix(seed, row, attempt) % len(others)]


def describe_exit(pid: int | None, code: int | None) -> str:
    """Describe how a process ended, in the words of torch's own DataLoader, with a hint for SIGKILL."""
    if code is None or code >= 0:
        return f"(pid(s) {pid}) exited unexpectedly" + (f" with code {code}" if code is not None else "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = " (the system may have run out of memory: use fewer workers or a smaller batch size)"
    return f"(pid {pid}) is killed by signal: {name}" + (hint if name == "SIGKILL" else "")
