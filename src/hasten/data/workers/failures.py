"""What to say, and what to do, when a sample cannot be made or a worker dies.

In: a dataset and an index, an exit code. Out: words, and which sample stands in. Refuses to know workers and queues.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from hasten.data.generators import mix

PATHS = ("samples", "imgs", "image_paths", "img_paths", "paths", "files", "filenames", "images")
MOST_SUBSTITUTES = 10  # a batch of which so many fail has another fault than a torn file


def path_of(dataset: Any, index: Any) -> str | None:
    """The file of a sample, where the dataset keeps a list of them."""
    try:
        while isinstance(dataset, (Subset, ConcatDataset)):
            dataset, index = _inner(dataset, index)
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


def _inner(dataset: Any, index: Any) -> tuple[Any, Any]:
    if isinstance(dataset, Subset):
        return dataset.dataset, dataset.indices[index]
    before = 0
    for part, end in zip(dataset.datasets, dataset.cumulative_sizes):
        if index < end:
            return part, index - before
        before = end
    return dataset.datasets[-1], index - before


def name_sample(dataset: Any, index: Any) -> str:
    """ "sample 17 (photos/17.jpg)", or "sample 17"."""
    path = path_of(dataset, index)
    return f"sample {index!r} ({path})" if path else f"sample {index!r}"


def name_in(error: BaseException | None, dataset: Any, index: Any) -> None:
    """Say below an exception's traceback which sample was being made. Its type and message stay (Python 3.11)."""
    add_note = getattr(error, "add_note", None)
    if add_note is not None:
        add_note(f"while making {name_sample(dataset, index)}")


def substitute(indices: Sequence[Any], row: int, attempt: int, seed: int) -> Any | None:
    """Which sample stands in for the one in `row`: another of the same batch, the same one every time.

    None where the batch has no other, or too many have failed.
    """
    others = [index for index in indices if index != indices[row]]
    if not others or attempt >= MOST_SUBSTITUTES:
        return None
    return others[mix(seed, row, attempt) % len(others)]


def describe_exit(pid: int | None, code: int | None) -> str:
    """How a process ended, in the words that torch's own DataLoader has for it, and some more."""
    if code is None or code >= 0:
        return f"(pid(s) {pid}) exited unexpectedly" + (f" with code {code}" if code is not None else "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = " (the system may have run out of memory: fewer workers or a smaller batch need less)"
    return f"(pid {pid}) is killed by signal: {name}" + (hint if name == "SIGKILL" else "")
