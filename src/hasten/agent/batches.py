"""Batches in a comparison: a few of them handed out again and again, and samples made once more to see that they are the same."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader

from hasten.agent.tree import tensors_in
from hasten.patches import Patches
from hasten.raw_run import RawQuality, SampledEpoch


def repeat_batches(number: int, patches: Patches, *, ends: bool) -> None:
    """Have every loader of this process hand out its first batches again and again."""
    first: dict[tuple[int, int | None], list[object]] = {}  # of a dataset, in batches of a size

    def repeated(sampler: Iterable[object], loader: DataLoader[object], dataset: int) -> _Repeated:
        return _Repeated(sampler, number, first.setdefault((dataset, loader.batch_size), []), ends=ends)

    wrap_samplers(patches, repeated)


class _Repeated:
    """The first few of a sampler's entries in the place of all that follow."""

    def __init__(self, of: Iterable[object], number: int, first: list[object], *, ends: bool) -> None:
        self._of = of
        self._number = number
        self._first = first
        self._ends = ends

    def __iter__(self) -> Iterator[object]:
        for position, entry in enumerate(self._of):
            if self._ends and position == self._number:
                return
            if len(self._first) <= position % self._number:
                self._first.append(entry)
            yield self._first[position % self._number]

    def __len__(self) -> int:
        return len(self._of)  # type: ignore[arg-type]


Sampler = Iterable[object]  # of keys, or of lists of them
Wrap = Callable[[Sampler, "DataLoader[object]", int], Sampler]  # its sampler, the loader, the number of its dataset


def wrap_samplers(patches: Patches, wrap: Wrap) -> None:
    """Have each loader of this process ask what `wrap` makes of its sampler, made once for each loader.

    Many scripts recreate the loader in each epoch: loaders of one dataset get the same number.
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


MOST_SECONDS = 6.0  # that batches are made once more
MOST_BYTES = 1 << 30  # of batches that wait for that


class OwnSamples:
    """Of one process that trains; `num_batches`: of an epoch, whose keys are kept."""

    def __init__(self, patches: Patches, *, num_batches: int) -> None:
        self._epochs: list[SampledEpoch] = []  # of all loaders, in the order in which they began
        self._number, self._next, self._bytes = 0, 1, 0
        self._waiting: list[tuple[list[torch.Tensor], Callable[[], object]]] = []
        wrap_samplers(patches, lambda sampler, _, dataset: _Followed(sampler, dataset, self._epochs, num_batches))

    def batch(self, iterator: object, batch: object) -> None:
        """Keep a batch that training was handed, to be made once more: ever fewer of them."""
        remaking = getattr(iterator, "remaking", None)
        if remaking is None:
            return
        self._number += 1
        remake = remaking() if self._number >= self._next and self._bytes < MOST_BYTES else None
        if remake is None:
            return
        self._next *= 2
        tensors = [tensor.detach().cpu().clone() for tensor in tensors_in(batch)]
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        self._waiting.append((tensors, remake))

    def add_to(self, quality: RawQuality) -> None:
        """Note all of it; batches are made once more now."""
        quality.epochs = self._epochs
        until = time.monotonic() + MOST_SECONDS
        for tensors, remake in self._waiting:
            number = len(tensors[0]) if tensors and tensors[0].dim() else 1
            try:
                again = list(tensors_in(remake()))
            except Exception as error:  # a dataset that works in its workers only
                quality.samples_trouble = repr(error)
                return
            is_same = len(tensors) == len(again) > 0 and all(map(_same, tensors, again))
            quality.num_equal += number * is_same
            quality.num_other += number * (not is_same)
            if time.monotonic() > until:
                return


class _Followed:
    """A sampler whose entries are noted as they are given."""

    def __init__(self, sampler: Iterable[object], of: int, epochs: list[SampledEpoch], most: int) -> None:
        self._sampler, self._of, self._epochs, self._most = sampler, of, epochs, most

    def __iter__(self) -> Iterator[object]:
        # Some draw their order when they are asked for it, not when they begin.
        return self._noting(iter(self._sampler))

    def _noting(self, entries: Iterator[object]) -> Iterator[object]:
        seen, length, keys = SampledEpoch(dataset=self._of), 0, set[str]()
        self._epochs.append(seen)
        for entry in entries:
            names = _names(entry)
            if len(seen.order) < self._most:
                seen.order.append(hashlib.blake2b(repr(names).encode(), digest_size=6).hexdigest())
            length += len(names)
            seen.repeats = seen.repeats or not keys.isdisjoint(names) or len({*names}) < len(names)
            keys.update(names)
            yield entry
        seen.num_keys = length

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]


def _names(entry: object) -> list[str]:
    """Of the keys in an entry; keys that cannot be identified count as equal."""
    if isinstance(entry, torch.Tensor):
        entry = entry.tolist()
    try:
        return [*map(repr, entry)] if isinstance(entry, (list, tuple)) else [repr(entry)]
    except Exception:
        return ["unknown"]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    first, second = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(first, second)
