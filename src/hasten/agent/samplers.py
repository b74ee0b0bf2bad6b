"""A place between every loader and its sampler, where the order of the samples can be noted or changed.

In: what to put there. Out: loaders ask that, and it asks their sampler. Refuses to know what is put there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from hasten.patches import Patches

Sampler = Iterable[object]  # of keys, or of lists of them
Wrap = Callable[[Sampler, "DataLoader[object]", int], Sampler]  # its sampler, the loader, the number of its dataset


def wrap_samplers(patches: Patches, wrap: Wrap) -> None:
    """Have each loader of this process ask what `wrap` makes of its sampler, made once for each loader.

    Many scripts make a loader anew in each epoch: loaders of one dataset are told the same number.
    """
    wrapped: WeakKeyDictionary[DataLoader[object], Sampler] = WeakKeyDictionary()
    datasets: dict[int, tuple[int, object]] = {}  # held, so that an id stays its own
    whole = DataLoader._index_sampler.fget  # type: ignore[attr-defined]  # pyright: ignore

    def index_sampler(loader: DataLoader[object]) -> Sampler:
        if loader not in wrapped:
            number, _ = datasets.setdefault(id(loader.dataset), (len(datasets), loader.dataset))
            wrapped[loader] = wrap(whole(loader), loader, number)  # type: ignore[misc]
        return wrapped[loader]

    patches.set(DataLoader, "_index_sampler", property(index_sampler))
