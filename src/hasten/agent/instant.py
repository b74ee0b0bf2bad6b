"""Instant samples: loader workers hand over one batch again and again, as if its samples took no time to make.

Between this and replay, which hands over batches in the training process, lies what it costs to bring a batch from one process
to the other. A file in the run's folder turns it on, for workers are started in any way and at any time.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import torch

from hasten.agent.tree import mapped, tensors_in
from hasten.patches import warn

FILE = "instant-samples"


class InstantSamples:
    """Turned on and off in the training process; holds a worker's first batch, and hands it over while it is on."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._pid = 0
        self._again: Callable[[], object] | None = None

    def on(self) -> None:
        """Have all workers hand over what they hold."""
        self._file.touch()

    def off(self) -> None:
        """Let them work again."""
        self._file.unlink(missing_ok=True)

    def batch(self) -> object:
        """What to hand over; None: make one."""
        if self._pid != os.getpid() or self._again is None or not self._file.exists():
            return None
        return self._again()

    def hold(self, batch: object) -> None:
        """Keep a copy of this worker's first batch, before it is on its way."""
        if self._pid == os.getpid():
            return
        self._pid, self._again = os.getpid(), None
        try:
            self._again = _copies_of(batch)
        except Exception as error:
            warn(f"a batch cannot be held ({error!r})")


def _copies_of(batch: object) -> Callable[[], object]:
    """What makes copies of a batch, each tensor written once as it was: collating may write to shared memory itself."""
    if next(tensors_in(batch, most=1), None) is None:
        return lambda: batch  # nothing that sending changes
    kept = mapped(batch, lambda t: _in_shared_memory(t) if t.is_shared() else t.clone())
    if isinstance(batch, (torch.Tensor, dict, list, tuple)):
        return lambda: mapped(kept, lambda t: _in_shared_memory(t) if t.is_shared() else t.clone())
    return lambda: copy.deepcopy(batch)


def _in_shared_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, made as torch's default_collate makes a batch in a worker."""
    storage = tensor._typed_storage()._new_shared(tensor.numel(), device=tensor.device)  # pyright: ignore[reportPrivateUsage]
    return tensor.new(storage).resize_(*tensor.size()).copy_(tensor)
