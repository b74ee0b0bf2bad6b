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

from hasten.loading.epoch.epochs import Epochs
from hasten.loading.epoch.gather import Columns
from hasten.loading.epoch.order import batches_of_indices
from hasten.loading.settings import Settings


class Gathering(Epochs):
    """An iterator over a Loader's batches."""

    def __init__(self, loader: DataLoader[Any], settings: Settings, columns: Columns) -> None:
        self._columns = columns
        super().__init__(loader, settings)

    @property
    def _workers(self) -> list[Any]:
        """None of them, by the name under which torch's iterator has them."""
        return []

    def _order(self) -> Iterator[torch.Tensor | list[Any]]:
        found = batches_of_indices(self._index_sampler)
        return self._of_keys() if found is None else found

    def _of_keys(self) -> Iterator[torch.Tensor | list[Any]]:
        """Vectors where the sampler gives whole numbers; else its keys as they are."""
        sampler: Any = self._index_sampler
        for keys in sampler:
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
        self._settings.record.tally.handed(len(indices), waited=time.perf_counter() - began, ready=0)
        return batch
