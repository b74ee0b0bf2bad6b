"""The order of samples: the sampler's own, as index vectors where they give the same order."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler


class Repeats:
    """Counts how often each index occurred before in an epoch."""

    def __init__(self, sampler: object) -> None:
        self._seen: Counter[Any] | None = None if _never_repeats(sampler) else Counter()

    def count(self, indices: Sequence[Any]) -> list[int] | None:
        """Return how often each of `indices` occurred before, and count them; None if none did."""
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


class Lookahead:
    """The keys of an epoch, and which samples come after those handed out.

    Only for samplers that fix an epoch's order when it begins: another may go by what the training loop does.
    """

    def __init__(self, sampler: object, *, num_samples: int) -> None:
        inner = sampler.sampler if type(sampler) is BatchSampler else sampler
        is_fixed = type(inner) in (RandomSampler, SequentialSampler, DistributedSampler, SubsetRandomSampler)
        size = getattr(sampler, "batch_size", 1)
        self._distance = max(1, num_samples // size) if is_fixed else 0
        self._keys: deque[Any] = deque()
        self._coming: deque[Any] = deque()

    def clear(self) -> None:
        """Forget what is left of the epoch."""
        self._keys.clear()
        self._coming.clear()

    def next(self, keys: Iterator[Any]) -> Any:
        """Return the next key of `keys`, after taking further ones from it. Raises StopIteration at the end."""
        while len(self._keys) <= self._distance and (key := next(keys, self)) is not self:
            self._keys.append(key)
            if self._distance:
                self._coming.extend(key if isinstance(key, (list, tuple)) else [key])
        if not self._keys:
            raise StopIteration
        return self._keys.popleft()

    def coming(self, number: int) -> list[Any]:
        """Return up to `number` of the samples to come, each once."""
        return [self._coming.popleft() for _ in range(min(number, len(self._coming)))]


def batches_of_indices(sampler: object) -> Iterator[torch.Tensor] | None:
    """Return the sampler's batches as int64 vectors, without a Python number per index; None if that is not possible.

    Draws from the same generators, at the same time, as iterating over `sampler`.
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
        torch.randperm(length, generator=generator)  # RandomSampler draws a last, empty part


@functools.cache
def _shuffles_as_known() -> bool:
    """Whether this torch's RandomSampler draws what `_batches` draws."""
    ours, theirs = torch.Generator(), torch.Generator()
    sampler = BatchSampler(RandomSampler(range(11), generator=theirs), 4, False)
    known = list(sampler)
    sampler.sampler.generator = ours  # type: ignore[attr-defined]
    found = [batch.tolist() for batch in _batches(sampler.sampler, 4, False)]  # type: ignore[arg-type]
    return found == known and torch.equal(ours.get_state(), theirs.get_state())
