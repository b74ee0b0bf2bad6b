"""The loaders that a process iterates: their settings, and the depth of their queue at each `next()`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.utils.data import DataLoader

from hasten.agent.frames import user_place
from hasten.agent.tree import num_samples, tensors_in
from hasten.protocol import StartMethod
from hasten.raw_run import UNKNOWN_LENGTH, LoaderSettings, RawLoader, RemoteCounts, TierCounts

MOST_INDICES = 1024  # of an epoch, of one rank of several
SAMPLE_BYTES = 512  # that a fingerprint is made of


class Loaders:
    """The loaders of one process, numbered in the order in which they were first iterated."""

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()  # of loaders and of iterators
        self._facts: list[RawLoader] = []
        self._lengths: list[int | None] = []
        self._taken: list[int] = []  # batches since the loader's last start
        self._replayed: set[int] = set()  # loaders of which held batches were handed out since then
        self._starts: list[int] = []  # since the warm-up ended
        self._caches: dict[int, Callable[[], object]] = {}
        self._plain: set[int] = set()  # those whose batches have no tensors: looking for one in each takes long
        self._early: list[int] = []  # indices of a loader that is about to start
        self._drawn_early = 0.0  # seconds for the indices of a loader that is about to start
        self._last = 0
        self._asked: Callable[[], object] = lambda: None  # the iterator that was asked last
        self._asked_number = 0

    def starts(self, loader: DataLoader[object], iterator: object) -> bool:
        """Note that a loader begins an epoch; True when it was never seen before."""
        number = self._numbers.get(loader)
        new = number is None
        if number is None:
            settings = _settings(loader)
            number = self._same_as(settings)
            new = number is None
            if number is not None:
                # Where the one before it still lives, they are two loaders that look alike.
                self._facts[number].recreated = self._living(number) is None
            else:
                number = len(self._facts)
                self._facts.append(RawLoader(settings=settings))
                self._lengths.append(_length(loader))
                self._taken.append(0)
                self._starts.append(0)
            self._numbers[loader] = number
        self._numbers[iterator] = number
        early = self._facts[number].sampling_at_start
        early.seconds, early.times = early.seconds + self._drawn_early, early.times + 1
        self._facts[number].indices.append(self._early)
        self._drawn_early, self._early = 0.0, []
        cache = getattr(iterator, "cache", None) or _memo_in_use()
        if cache is not None:
            self._caches[number] = ref(cache)
        self._taken[number] = 0
        self._replayed.discard(number)
        self._starts[number] += 1
        known = self._facts[number].pids
        known.extend(p.pid for p in getattr(iterator, "_workers", []) if p.pid not in known)
        return new

    def _same_as(self, settings: LoaderSettings) -> int | None:
        """A loader that is recreated for each epoch, with the same settings at the same line, is one loader."""
        return next((number for number, facts in enumerate(self._facts) if facts.settings == settings), None)

    def number_of(self, loader: DataLoader[object]) -> int:
        """The number of a loader that may not have been iterated yet; -1: a new one."""
        number = self._numbers.get(loader)
        number = self._same_as(_settings(loader)) if number is None else number
        return -1 if number is None else number

    def drew(self, iterator: object, indices: object, seconds: float, *, starting: bool) -> None:
        """Note a batch's indices, and what choosing them took; `starting`: within `iter(loader)`."""
        number = self._numbers.get(iterator)
        if number is None:
            self._drawn_early += seconds
            if is_rank():
                _keep(indices, self._early)
            return
        facts = self._facts[number]
        if facts.indices and is_rank():
            _keep(indices, facts.indices[-1])
        if starting or not self._taken[number]:
            facts.sampling_at_start.seconds += seconds
        else:
            facts.sampling.seconds += seconds
            facts.sampling.times += 1

    def known(self, iterator: object) -> int | None:
        """The loader's number, if its iterator was seen."""
        return self._numbers.get(iterator)

    def number(self, iterator: object) -> int:
        """The loader's number. An iterator that was not made by `iter(loader)` counts as a loader of its own."""
        number = self._numbers.get(iterator)
        if number is None:
            number = self._numbers[iterator] = len(self._facts)
            self._facts.append(_facts_of_iterator(iterator))
            self._lengths.append(None)
            self._taken.append(0)
            self._starts.append(1)
        return number

    def asked(self, iterator: object) -> tuple[int, int | None]:
        """A batch is asked for: number of the loader, and how many batches lie ready."""
        if self._asked() is not iterator:
            self._asked, self._asked_number = ref(iterator), self.number(iterator)
        return self._asked_number, self.ready(iterator)

    def ready(self, iterator: object) -> int | None:
        """Batches that lie ready; None where there are no workers."""
        queue = getattr(iterator, "_data_queue", None)
        if queue is None:
            return None
        try:
            arrived = sum(len(entry) == 2 for entry in iterator._task_info.values())  # type: ignore[attr-defined]
            return arrived + queue.qsize()
        except (NotImplementedError, AttributeError, RuntimeError):  # macOS has no qsize
            return None

    def length_of(self, number: int, batch: object) -> int:
        """Note that a batch was handed out; the number of its samples."""
        self._taken[number] += 1
        self._last = number
        facts = self._facts[number]
        if len(facts.indices) == 1 and len(facts.samples) < MOST_INDICES and is_rank():
            _fingerprint(batch, facts)
        if number in self._plain:
            return UNKNOWN_LENGTH
        if facts.bytes_per_batch is None:
            tensors = list(tensors_in(batch))
            if tensors:
                facts.bytes_per_batch = sum(t.numel() * t.element_size() for t in tensors)
                facts.dtypes = tuple(sorted({str(t.dtype).removeprefix("torch.") for t in tensors}))
            else:
                self._plain.add(number)
        length = num_samples(batch)
        return UNKNOWN_LENGTH if length is None else length

    def replays(self, number: int, joined: int) -> None:
        """A held batch, or so many joined to one, is about to be handed out: end the epoch where the loader would."""
        self._replayed.add(number)
        self._raise_at_end(number, joined)

    def fetches(self, number: int) -> None:
        """The loader is asked itself: it still has those batches that were replayed instead, but its epoch is over."""
        if number in self._replayed:
            self._raise_at_end(number, 1)

    def _raise_at_end(self, number: int, joined: int) -> None:
        length = self._lengths[number]
        if length is not None and self._taken[number] >= max(1, length // joined):
            raise StopIteration

    def busiest(self) -> DataLoader[object] | None:
        """The loader that gave the last batch, if it still exists."""
        return self._living(self._last)

    def _living(self, number: int) -> DataLoader[object] | None:
        return next((k for k, n in self._numbers.items() if n == number and isinstance(k, DataLoader)), None)

    def queue_length(self) -> int:
        """Batches that the busiest loader's workers hold ready at the most."""
        loader = self.busiest()
        return loader.num_workers * (loader.prefetch_factor or 0) if loader is not None else 0

    def begin(self) -> None:
        """The warm-up is over."""
        self._starts = [0] * len(self._starts)

    def epoch_left(self, step_seconds: float) -> tuple[float | None, int]:
        """Seconds until the busiest loader's epoch ends, about, and epochs begun since the warm-up."""
        if not self._facts:
            return None, 0
        length = self._lengths[self._last]
        left = None if length is None else (length - self._taken[self._last]) * step_seconds
        return left, max(self._starts)

    def raw(self) -> list[RawLoader]:
        """All of them, with what their caches have given and hold."""
        for number, known in self._caches.items():
            cache: Any = known()
            if cache is not None:
                facts, counts = self._facts[number], cache.counts()
                facts.num_cache_misses = counts.num_misses
                facts.cache = tuple(
                    TierCounts(tier.name, tier.num_hits, tier.num_bytes, tier.budget, tier.seconds_saved)
                    for tier in counts.tiers
                )
                remote = counts.remote
                if remote is not None and (remote.num_hits or remote.num_direct):
                    figures = remote.num_hits, remote.num_downloads, remote.num_bytes
                    facts.remote = RemoteCounts(*figures, remote.num_retries, remote.num_direct)
        return self._facts


def is_rank() -> bool:
    """Whether this is one rank of several: which samples it takes is compared with the others."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _fingerprint(batch: object, facts: RawLoader) -> None:
    """Fingerprints of a batch's samples, each under the index that the sampler gave for it."""
    start = len(facts.samples)
    length = num_samples(batch) or 0
    taken = facts.indices[0][start : start + length]
    tensors = [t for t in tensors_in(batch, most=4) if t.dim() and t.shape[0] == length and t.device.type == "cpu"]
    for row, index in enumerate(taken):
        facts.samples[str(index)] = [_short(tensor[row]) for tensor in tensors]


def _short(row: torch.Tensor) -> str:
    values = row.detach().reshape(-1)
    some = values[:: max(1, values.numel() * values.element_size() // SAMPLE_BYTES)]
    return blake2b(some.contiguous().view(torch.uint8).numpy().tobytes(), digest_size=4).hexdigest()


def _keep(indices: object, kept: list[int]) -> None:
    if isinstance(indices, list) and len(kept) < MOST_INDICES:
        kept.extend(index for index in indices[: MOST_INDICES - len(kept)] if isinstance(index, int))


def _settings(loader: DataLoader[object]) -> LoaderSettings:
    dataset = loader.dataset
    context = loader.multiprocessing_context
    return LoaderSettings(
        name=type(dataset).__name__,
        num_workers=loader.num_workers,
        batch_size=_batch_size(loader),
        num_batches=_length(loader),
        num_samples=_length(dataset),
        prefetch_factor=loader.prefetch_factor if loader.num_workers else None,
        persistent_workers=bool(loader.persistent_workers),
        pin_memory=bool(loader.pin_memory),
        start_method=_start_method(context),
        drop_last=bool(getattr(loader, "drop_last", False)),
        where=user_place(sys._getframe(3)),  # pyright: ignore[reportPrivateUsage]
    )


def _memo_in_use() -> Any:
    """What the library calls of this process go through, where a cache is on."""
    module: Any = sys.modules.get("hasten.data.memo.memo")
    return None if module is None else module.current()


def _facts_of_iterator(iterator: object) -> RawLoader:
    dataset = getattr(iterator, "_dataset", None)
    settings = LoaderSettings(
        name=type(dataset).__name__,
        num_workers=getattr(iterator, "_num_workers", 0),
        num_samples=_length(dataset),
        pin_memory=bool(getattr(iterator, "_pin_memory", False)),
    )
    return RawLoader(settings=settings, pids=[p.pid for p in getattr(iterator, "_workers", [])])


def _start_method(context: Any) -> StartMethod:
    if context is not None:
        return context.get_start_method()
    import multiprocessing

    found: Any = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return found


def _batch_size(loader: DataLoader[object]) -> int | None:
    if loader.batch_size is not None:
        return loader.batch_size
    size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def _length(sized: object) -> int | None:
    try:
        return len(sized)  # type: ignore[arg-type]  # a stream has none, and says so in many ways
    except (TypeError, NotImplementedError, AttributeError, ValueError):
        return None
