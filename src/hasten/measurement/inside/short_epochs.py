"""Epochs of few batches, always the same: what a warm epoch costs can then be seen within seconds.

In: how many batches an epoch shall have. Out: every pass over a loader's sampler after the first gives the batches of
the first again. Refuses to change `len(loader)`: the script's own arithmetic stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from hasten.measurement.inside.patches import Patches


class ShortEpochs:
    """The samplers of one process, cut short."""

    def __init__(self, num_batches: int, patches: Patches) -> None:
        self.num_batches = num_batches
        self._samplers: WeakKeyDictionary[DataLoader[object], _Repeated] = WeakKeyDictionary()
        whole = DataLoader._index_sampler.fget  # type: ignore[attr-defined]  # pyright: ignore

        def index_sampler(loader: DataLoader[object]) -> object:
            known = self._samplers.get(loader)
            if known is None:
                known = self._samplers[loader] = _Repeated(whole(loader), num_batches)  # type: ignore[misc]
            return known

        patches.set(DataLoader, "_index_sampler", property(index_sampler))

    def num_passes(self) -> int:
        """Passes begun over the sampler that was passed over most."""
        return max((sampler.num_passes for sampler in list(self._samplers.values())), default=0)


class _Repeated:
    """The first few of a sampler's entries, over and over."""

    def __init__(self, of: Iterable[object], number: int) -> None:
        self.num_passes = 0
        self._of = of
        self._number = number
        self._first: list[object] | None = None

    def __iter__(self) -> Iterator[object]:
        # A pass begins with its first entry: iterators are made, and left alone, at the beginning of an epoch.
        self.num_passes += 1
        if self._first is None:
            self._first = list(islice(self._of, self._number))
        yield from self._first

    def __len__(self) -> int:
        return len(self._of)  # type: ignore[arg-type]
