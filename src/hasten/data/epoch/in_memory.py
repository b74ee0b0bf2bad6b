"""Epochs of batches gathered from memory, without workers: gathering a batch takes less time than requesting it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin

from hasten.data.epoch.base import BaseIterator
from hasten.data.epoch.columns import Columns
from hasten.data.epoch.order import batches_of_indices
from hasten.data.epoch.state import LoaderOptions, LoaderState
from hasten.data.epoch.transfer import transfer_to
from hasten.devices import accelerator

DEVICE_SHARE = 0.25  # of the device's free memory: the model and its activations need the rest


class InMemoryIterator(BaseIterator):
    """An iterator over a Loader's batches."""

    def __init__(self, loader: DataLoader[Any], options: LoaderOptions, state: LoaderState, columns: Columns) -> None:
        self._on_host = columns
        self._columns = _on_device(columns, options, state)
        self._transfer = transfer_to(options.device)
        super().__init__(loader, state)

    @property
    def _workers(self) -> list[Any]:
        """No worker processes, under the name that torch's iterator uses."""
        return []

    def _order(self, given: Iterator[Any]) -> Iterator[torch.Tensor | list[Any]]:
        """Yield index vectors if the order is known; `given` has not started then, and is dropped."""
        found = batches_of_indices(self._index_sampler)
        return self._of_keys(given) if found is None else found

    def _of_keys(self, given: Iterator[Any]) -> Iterator[torch.Tensor | list[Any]]:
        """Yield a vector for batches of integers, and any other keys unchanged."""
        for keys in given:
            if set(map(type, keys)) == {int}:
                indices = torch.as_tensor(keys, dtype=torch.int64)
                yield torch.where(indices < 0, indices + len(self._columns), indices)
            else:
                yield list(keys)

    def _next_data(self) -> Any:
        began = time.perf_counter()
        indices = next(self._keys)
        if isinstance(indices, torch.Tensor) and not self._on_host.are_current:
            indices = indices.tolist()
        on_host = isinstance(indices, list) or not self._columns.is_copy_of(self._on_host)
        if isinstance(indices, list):
            batch = self._collate_fn([self._dataset[index] for index in indices])
        else:
            batch = (self._on_host if on_host else self._columns).gather(indices)
        if self._transfer is not None and on_host:
            batch = self._transfer.receive(self._transfer.send(batch))
        elif self._pin_memory and on_host:
            batch = torch_pin(batch, self._pin_memory_device)
        self._state.counts.count_batch(len(indices), waited=time.perf_counter() - began, ready=0)
        return batch


def _on_device(columns: Columns, options: LoaderOptions, state: LoaderState) -> Columns:
    """Return the columns on the device if they fit; copied once, and again after a change."""
    device = options.device
    if device is None or columns.has_arrays:  # changes to a NumPy array cannot be detected
        return columns
    known = state.on_device
    if known is not None and known.is_copy_of(columns):
        return known
    state.on_device = None
    if columns.num_bytes > DEVICE_SHARE * accelerator.free_memory(device):
        return columns
    state.on_device = columns.to(device)
    return state.on_device
