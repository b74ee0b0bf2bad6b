"""Whether a run trains on the script's own samples, where its batches cannot be compared: they are drawn otherwise.

In: what samplers give, and batches of hasten's loader. Out: the order that was asked for, and how many samples are to
the bit what the dataset makes of their seeds. Refuses to ask the dataset before training is over, and to decide what
follows.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field

import torch

from hasten.agent.patches import Patches
from hasten.measurement.inside.nests import tensors_in
from hasten.measurement.inside.samplers import wrap_samplers

MOST_SECONDS = 6.0  # that batches are made once more
MOST_BYTES = 1 << 30  # of batches that wait for that


class OwnSamples:
    """Of one process that trains; `num_batches`: of an epoch, whose keys are kept."""

    def __init__(self, patches: Patches, *, num_batches: int) -> None:
        self._epochs: list[_Epoch] = []  # of all loaders, in the order in which they began
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

    def raw(self) -> dict[str, object]:
        """All of it, as JSON values; batches are made once more now."""
        epochs = [asdict(epoch) for epoch in self._epochs]
        equal, other, trouble = 0, 0, ""
        until = time.monotonic() + MOST_SECONDS
        for tensors, remake in self._waiting:
            number = len(tensors[0]) if tensors and tensors[0].dim() else 1
            try:
                again = list(tensors_in(remake()))
            except Exception as error:  # a dataset that works in its workers only
                trouble = repr(error)
                break
            is_same = len(tensors) == len(again) > 0 and all(map(_same, tensors, again))
            equal, other = equal + number * is_same, other + number * (not is_same)
            if time.monotonic() > until:
                break
        return {"epochs": epochs, "own": [equal, other], "own_trouble": trouble}


@dataclass
class _Epoch:
    """What a sampler gave in one epoch."""

    of: int  # the number of the dataset
    order: list[str] = field(default_factory=list)  # a fingerprint a batch
    length: int | None = None  # keys; None: it is not over
    repeats: bool = False  # a key came twice


class _Followed:
    """A sampler whose entries are noted as they are given."""

    def __init__(self, sampler: Iterable[object], of: int, epochs: list[_Epoch], most: int) -> None:
        self._sampler, self._of, self._epochs, self._most = sampler, of, epochs, most

    def __iter__(self) -> Iterator[object]:
        # Some draw their order when they are asked for it, not when they begin.
        return self._noting(iter(self._sampler))

    def _noting(self, entries: Iterator[object]) -> Iterator[object]:
        seen, length, keys = _Epoch(self._of), 0, set[str]()
        self._epochs.append(seen)
        for entry in entries:
            names = _names(entry)
            if len(seen.order) < self._most:
                seen.order.append(hashlib.blake2b(repr(names).encode(), digest_size=6).hexdigest())
            length += len(names)
            seen.repeats = seen.repeats or not keys.isdisjoint(names) or len({*names}) < len(names)
            keys.update(names)
            yield entry
        seen.length = length

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]


def _names(entry: object) -> list[str]:
    """Of the keys in an entry; a key that cannot be told is as any other."""
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
