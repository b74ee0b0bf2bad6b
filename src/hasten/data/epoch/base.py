"""The beginning of an epoch: in the sampler's order, or where an earlier one left off.

The iterator is one of torch's loader iterators, so tools that instrument those instrument this one too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from hasten.data.epoch.resume import Position, read_generators, write_generators
from hasten.data.epoch.state import LoaderState
from hasten.data.generators import kept, mix


class BaseIterator(_BaseDataLoaderIter):
    """An iterator over a Loader's batches, epoch after epoch where its workers stay."""

    def __init__(self, loader: DataLoader[Any], state: LoaderState) -> None:
        self._state = state
        self._own = generators_of(loader)
        resumed = state.take_resumed()
        if resumed is None:
            generators = read_generators(self._own)
            super().__init__(loader)  # draws a seed, as torch's own iterators do
            self._begin(Position(loader.batch_size, self._base_seed, 0, True, generators))
        else:
            with kept():  # the global generators belong to the training loop by now
                write_generators(resumed.generators, self._own)
                super().__init__(loader)  # asks for an order and draws a seed, as when the epoch began
                if not resumed.has_drawn_seed:
                    self._ask(resumed, loader)
                self._go_on(resumed)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin another epoch with the workers that are there."""
        resumed = self._state.take_resumed()
        if resumed is None:
            generators = read_generators(self._own)
            super()._reset(loader, first_iter)
            self._begin(Position(loader.batch_size, self._base_seed, self._position.epoch + 1, False, generators))
        else:
            with kept():
                self._ask(resumed, loader)
                self._go_on(resumed)

    def _begin(self, position: Position) -> None:
        self._position = self._state.position = position
        self._keys = self._order(self._sampler_iter)
        self._seed = mix(position.base_seed, position.epoch)

    def _ask(self, position: Position, loader: DataLoader[Any]) -> None:
        """Ask for the order from the generators as they were: some draw it now, before the seed, others after it."""
        write_generators(position.generators, self._own)
        self._sampler_iter = iter(cast("Iterable[Any]", self._index_sampler))
        if position.has_drawn_seed:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def _go_on(self, position: Position) -> None:
        self._base_seed = position.base_seed
        self._begin(position)
        self._skip(position.batches)
        self._num_yielded = position.batches

    def __next__(self) -> Any:
        try:
            batch = super().__next__()
        except StopIteration:
            if self._state.position is self._position:
                self._state.position = None
            raise
        self._position.batches = self._num_yielded
        return batch

    def _skip(self, batches: int) -> None:
        # The first key beyond is taken as well: a sampler may draw its whole order when it is first asked.
        first = list(itertools.islice(self._keys, batches, batches + 1))
        self._keys = itertools.chain(first, self._keys)

    def _order(self, given: Iterator[Any]) -> Iterator[Any]:
        """The keys of one batch after another; `given` is the sampler's own iterator, which was asked for once."""
        return given


def generators_of(loader: DataLoader[Any]) -> dict[str, torch.Generator]:
    """The generators that a loader's order is drawn from, beside the global ones."""
    owners = {"loader": loader, "sampler": loader.sampler, "inner": getattr(loader.batch_sampler, "sampler", None)}
    found = {name: getattr(owner, "generator", None) for name, owner in owners.items()}
    return {name: generator for name, generator in found.items() if isinstance(generator, torch.Generator)}
