"""Start an epoch in the sampler's order, or resume one at a saved position.

The iterator subclasses torch's loader iterator, so tools that instrument torch's iterators instrument this one too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from hasten.data.epoch.resume import Checksums, Position, read_generators, write_generators
from hasten.data.epoch.state import LoaderState
from hasten.data.generators import mix, preserve_generators
from hasten.errors import StateError


class BaseIterator(_BaseDataLoaderIter):
    """An iterator over a Loader's batches; with persistent workers, it is reused for every epoch."""

    def __init__(self, loader: DataLoader[Any], state: LoaderState) -> None:
        self._state = state
        self._own = generators_of(loader)
        resumed = state.take_resumed()
        if resumed is None:
            generators, epochs = read_generators(self._own), epochs_of(loader)
            super().__init__(loader)  # draws a seed, as torch's own iterators do
            self._begin(Position(loader.batch_size, self._base_seed, 0, True, generators, epochs=epochs))
        else:
            with preserve_generators():  # by now the training loop uses the global generators
                write_generators(resumed.generators, self._own)
                set_epochs(loader, resumed.epochs)
                super().__init__(loader)  # creates the sampler's iterator and draws a seed, as at the epoch's start
                if not resumed.has_drawn_seed:
                    self._recreate_order(resumed, loader)
                self._continue(resumed)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Start another epoch with the existing workers."""
        resumed = self._state.take_resumed()
        if resumed is None:
            generators, epochs = read_generators(self._own), epochs_of(loader)
            super()._reset(loader, first_iter)
            number = self._position.epoch + 1
            self._begin(Position(loader.batch_size, self._base_seed, number, False, generators, epochs=epochs))
        else:
            with preserve_generators():
                self._recreate_order(resumed, loader)
                self._continue(resumed)

    def _begin(self, position: Position) -> None:
        self._position = self._state.position = position
        self._checksums = Checksums(self._order(self._sampler_iter))
        self._keys: Iterator[Any] = self._checksums
        self._seed = mix(position.base_seed, position.epoch)

    def _recreate_order(self, position: Position, loader: DataLoader[Any]) -> None:
        """Recreate the order with the generators restored: some samplers draw it now, before the seed, others after it."""
        write_generators(position.generators, self._own)
        set_epochs(loader, position.epochs)
        self._sampler_iter = iter(cast("Iterable[Any]", self._index_sampler))
        if position.has_drawn_seed:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def _continue(self, position: Position) -> None:
        self._base_seed = position.base_seed
        self._begin(position)
        self._skip(position.batches)
        if position.batches and self._checksums.take(position.batches) != position.checksum:
            self._state.position = None
            raise StateError(
                "the sampler does not repeat the order of the saved epoch; before iter(), restore the dataset and what "
                "the sampler draws from, for example loader.set_epoch(n)"
            )
        self._num_yielded = position.batches

    def __next__(self) -> Any:
        try:
            batch = super().__next__()
        except StopIteration:
            if self._state.position is self._position:
                self._state.position = None
            raise
        checksum = self._checksums.take(1)
        if checksum is not None:
            self._position.checksum = checksum
        self._position.batches = self._num_yielded
        return batch

    def _skip(self, batches: int) -> None:
        # Also take the first key after them: a sampler may draw its whole order when it is first asked.
        first = list(itertools.islice(self._keys, batches, batches + 1))
        self._keys = itertools.chain(first, self._keys)

    def _order(self, given: Iterator[Any]) -> Iterator[Any]:
        """Yield the keys of each batch; `given` is the sampler's own iterator, which has been created already."""
        return given


def _samplers_of(loader: DataLoader[Any]) -> dict[str, object]:
    inner = getattr(loader.batch_sampler, "sampler", None)
    return {"sampler": loader.sampler, "batch_sampler": loader.batch_sampler, "inner": inner}


def epochs_of(loader: DataLoader[Any]) -> dict[str, int]:
    """The `epoch` of each sampler that counts them, as DistributedSampler does."""
    found = {name: getattr(sampler, "epoch", None) for name, sampler in _samplers_of(loader).items()}
    return {name: epoch for name, epoch in found.items() if type(epoch) is int}


def set_epochs(loader: DataLoader[Any], epochs: dict[str, int]) -> None:
    """Set them, where the samplers have them."""
    for name, sampler in _samplers_of(loader).items():
        if name in epochs and type(getattr(sampler, "epoch", None)) is int:
            sampler.epoch = epochs[name]  # type: ignore[attr-defined]


def generators_of(loader: DataLoader[Any]) -> dict[str, torch.Generator]:
    """Return the generators from which a loader's order is drawn, apart from the global ones."""
    owners = {"loader": loader, "sampler": loader.sampler, "inner": getattr(loader.batch_sampler, "sampler", None)}
    found = {name: getattr(owner, "generator", None) for name, owner in owners.items()}
    return {name: generator for name, generator in found.items() if isinstance(generator, torch.Generator)}
