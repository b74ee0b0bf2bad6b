"""Which samples come when: the sampler's own order, as vectors where that is the same."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler


class Repeats:
    """How often each index of an epoch has come before."""

    def __init__(self, sampler: object) -> None:
        self._seen: Counter[Any] | None = None if _never_repeats(sampler) else Counter()

    def count(self, indices: Sequence[Any]) -> list[int] | None:
        """Of these, which come now; None: never."""
        if self._seen is None:
            return None
        counts: list[int] = []
        for index in indices:
            name = index if isinstance(index, (int, str)) else repr(index)
            counts.append(self._seen[name])
            self._seen[name] += 1
        return counts if any(counts) else None


def _never_repeats(sampler: object) -> bool:
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)  # type: ignore[arg-type]
    return type(sampler) in (SequentialSampler, DistributedSampler)


def batches_of_indices(sampler: object) -> Iterator[torch.Tensor] | None:
    """The same batches as int64 vectors, without a Python number for each index; None where that is not known.

    Draws from the same generators as iterating over `sampler` does, when it does.
    """
    if type(sampler) is not BatchSampler:
        return None
    inner = sampler.sampler
    if type(inner) is RandomSampler:
        if inner.replacement or inner.num_samples != len(inner.data_source) or not _shuffles_as_known():  # type: ignore[arg-type]
            return None
    elif type(inner) is not SequentialSampler:
        return None
    return _batches(inner, sampler.batch_size, sampler.drop_last)


def _batches(inner: RandomSampler | SequentialSampler, batch_size: int, drop_last: bool) -> Iterator[torch.Tensor]:
    length = len(inner.data_source)  # type: ignore[arg-type]
    generator = None
    if type(inner) is RandomSampler:
        generator = inner.generator
        if generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator()
            generator.manual_seed(seed)
        order = torch.randperm(length, generator=generator)
    else:
        order = torch.arange(length)
    for start in range(0, length - batch_size + 1 if drop_last else length, batch_size):
        yield order[start : start + batch_size]
    if generator is not None:
        torch.randperm(length, generator=generator)  # RandomSampler draws a last part, which is empty


@functools.cache
def _shuffles_as_known() -> bool:
    """Whether this torch's RandomSampler still draws what `_batches` draws."""
    ours, theirs = torch.Generator(), torch.Generator()
    sampler = BatchSampler(RandomSampler(range(11), generator=theirs), 4, False)
    known = list(sampler)
    sampler.sampler.generator = ours  # type: ignore[attr-defined]
    found = [batch.tolist() for batch in _batches(sampler.sampler, 4, False)]  # type: ignore[arg-type]
    return found == known and torch.equal(ours.get_state(), theirs.get_state())
