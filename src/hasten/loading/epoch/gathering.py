"""An epoch of batches that are gathered from memory.

In: columns, and the sampler's order. Out: batches. No worker is started: to gather a batch takes less than to ask
anybody for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from hasten.devices import accelerator
from hasten.loading.epoch.epochs import Epochs
from hasten.loading.epoch.gather import Columns
from hasten.loading.epoch.order import batches_of_indices
from hasten.loading.epoch.transfer import transfer_to
from hasten.loading.settings import Settings

DEVICE_SHARE = 0.25  # of the device's free memory: the model and what it computes need the rest


class Gathering(Epochs):
    """An iterator over a Loader's batches."""

    def __init__(self, loader: DataLoader[Any], settings: Settings, columns: Columns) -> None:
        self._columns = _near(columns, settings)
        is_there = self._columns is not columns
        self._transfer = None if is_there else transfer_to(settings.device)
        super().__init__(loader, settings)

    @property
    def _workers(self) -> list[Any]:
        """None of them, by the name under which torch's iterator has them."""
        return []

    def _order(self, given: Iterator[Any]) -> Iterator[torch.Tensor | list[Any]]:
        """Vectors where that is known to be the same; `given` has not begun then, and is dropped."""
        found = batches_of_indices(self._index_sampler)
        return self._of_keys(given) if found is None else found

    def _of_keys(self, given: Iterator[Any]) -> Iterator[torch.Tensor | list[Any]]:
        """Vectors where the sampler gives whole numbers; else its keys as they are."""
        for keys in given:
            if set(map(type, keys)) == {int}:
                indices = torch.as_tensor(keys, dtype=torch.int64)
                yield torch.where(indices < 0, indices + len(self._columns), indices)
            else:
                yield list(keys)

    def _next_data(self) -> Any:
        began = time.perf_counter()
        indices = next(self._keys)
        if isinstance(indices, list):
            batch = self._collate_fn([self._dataset[index] for index in indices])
        else:
            batch = self._columns.gather(indices)
        if self._transfer is not None:
            batch = self._transfer.receive(self._transfer.send(batch))
        self._settings.record.tally.handed(len(indices), waited=time.perf_counter() - began, ready=0)
        return batch


def _near(columns: Columns, settings: Settings) -> Columns:
    """The columns on the device, where they fit there; moved once, and again when they have changed."""
    device = settings.device
    if device is None:
        return columns
    known = settings.record.on_device
    if known is not None and known[0] == columns.state:
        return known[1]
    settings.record.on_device = None
    if columns.num_bytes > DEVICE_SHARE * accelerator.free_memory(device):
        return columns
    moved = columns.to(device)
    settings.record.on_device = columns.state, moved
    return moved
