"""Whether a run trains on the script's own samples, where its batches cannot be compared: they are drawn otherwise.

In: what samplers give, and batches of hasten's loader. Out: the order that was asked for, and how many samples are to the bit
what the dataset makes of their seeds. Refuses to decide what follows from that.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader

from hasten.measurement.inside.nests import tensors_in
from hasten.measurement.inside.patches import Patches

MOST_SECONDS = 6.0  # that samples are made once more


class OwnSamples:
    """Of the training loader of one process."""

    def __init__(self, patches: Patches, *, num_batches: int) -> None:
        self._num_batches = num_batches  # of an epoch, whose keys are kept
        self._epochs: list[_Epoch] = []  # of all loaders, in the order in which they began
        self._number = 0
        self._next = 1
        self._equal, self._other, self._trouble = 0, 0, ""
        self._seconds = 0.0
        self._follow(patches)

    def _follow(self, patches: Patches) -> None:
        samplers: WeakKeyDictionary[DataLoader[object], _Followed] = WeakKeyDictionary()
        whole = DataLoader._index_sampler.fget  # type: ignore[attr-defined]  # pyright: ignore

        def index_sampler(loader: DataLoader[object]) -> object:
            known = samplers.get(loader)
            if known is None:
                known = samplers[loader] = _Followed(whole(loader), self._epochs, self._num_batches)  # type: ignore[misc]
            return known

        patches.set(DataLoader, "_index_sampler", property(index_sampler))

    def batch(self, iterator: object, batch: object) -> None:
        """Look at a batch that training was handed: at ever fewer of them, for each is made once more."""
        make = getattr(iterator, "made_again", None)
        if make is None:
            return
        self._number += 1
        if self._number < self._next or self._trouble or self._seconds > MOST_SECONDS:
            return
        self._next *= 2
        began = time.monotonic()
        try:
            again = make()
        except Exception as error:  # a dataset that works in its workers only
            self._trouble = repr(error)
            return
        if again is not None:
            pairs = list(zip(tensors_in(batch), tensors_in(again), strict=True))
            equal = bool(pairs) and all(_same(one, other) for one, other in pairs)
            number = len(pairs[0][0]) if pairs and pairs[0][0].dim() else 1
            self._equal, self._other = self._equal + number * equal, self._other + number * (not equal)
        self._seconds += time.monotonic() - began

    def raw(self) -> dict[str, object]:
        """All of it, as JSON values."""
        epochs = [{"order": epoch.order, "length": epoch.length, "repeats": epoch.repeats} for epoch in self._epochs]
        return {"epochs": epochs, "own": [self._equal, self._other], "own_trouble": self._trouble}


@dataclass
class _Epoch:
    """What a sampler gave in one epoch."""

    order: list[str] = field(default_factory=list)  # a fingerprint a batch
    length: int | None = None  # keys; None: it is not over
    repeats: bool = False  # a key came twice


class _Followed:
    """A sampler whose entries are noted as they are given."""

    def __init__(self, of: Iterable[object], epochs: list[_Epoch], most: int) -> None:
        self._of, self._epochs, self._most = of, epochs, most

    def __iter__(self) -> Iterator[object]:
        seen, length, keys = _Epoch(), 0, set[str]()
        self._epochs.append(seen)
        for entry in self._of:
            if len(seen.order) < self._most:
                seen.order.append(hashlib.blake2b(repr(entry).encode(), digest_size=6).hexdigest())
            names = [*map(repr, entry)] if isinstance(entry, (list, tuple)) else [repr(entry)]
            length += len(names)
            seen.repeats = seen.repeats or not keys.isdisjoint(names) or len({*names}) < len(names)
            keys.update(names)
            yield entry
        seen.length = length

    def __len__(self) -> int:
        return len(self._of)  # type: ignore[arg-type]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    first, second = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(first, second)
