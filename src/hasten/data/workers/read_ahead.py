"""Fetch the remote objects of coming samples to the local disk, in the sampler's order.

What a sample opens is guessed from the dataset's own lists: a list whose entry at a sample's index is part of the path that was
opened for it. A guess is a hint: a wrong one costs bandwidth, and too many of them end the guessing. Samples are always built
by the dataset.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from hasten.data.memo.remote import RemoteTier
from hasten.data.memo.remote_calls import Opened, noting
from hasten.data.workers.failures import inner_dataset

CONFIRMED_BY = 3  # samples whose paths a rule must have given
MAX_TRIES = 32  # samples, after which no rule will be found
MAX_MISSES = 8  # wrong guesses, if they are more than half of all
MANY_SETTLED = 64  # objects in a row with nothing to fetch, after which only one in SELDOM is looked at
SELDOM = 16
MAX_HINTS = 4096
MAX_IN_FLIGHT = 64 << 20  # bytes that a process downloads ahead at a time
MAX_PARTS = 16  # of a list's entry that are looked at
MIN_PART = 3  # characters of a list's entry, to be recognized as a part of a path
JOIN_SECONDS = 5.0


class Rule(NamedTuple):
    """Where a path stands in a dataset, and what is around it in the path."""

    part: int
    """The identity of the dataset that has the list: a dataset may be made of several."""
    name: str
    key: Any
    """Of the path within the list's entry; None: the entry itself."""
    before: str
    after: str


class PathGuess:
    """Learns from the samples which remote objects a sample opens."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._common: set[Rule] | None = None
        self._fs: Any = None
        self._num_samples = self._num_guesses = self._num_misses = 0
        self.is_sure = False
        self.is_over = False

    def learn(self, index: Any, opened: Opened) -> None:
        """Take note of what was opened for a sample."""
        if self.is_over or not opened:
            return
        self._fs = opened[0][0]
        paths = {path for _, path in opened}
        if self.is_sure:
            guessed = set(self._guess(index))
            self._num_guesses += len(guessed)
            self._num_misses += len(guessed - paths)
            self.is_over = self._num_misses > max(MAX_MISSES, self._num_guesses / 2)
            return
        found = {rule for path in paths for rule in self._rules(index, path)}
        self._num_samples += 1
        common = found if self._common is None else self._common & found
        if not common:  # an odd sample, perhaps the first one: begin again
            common, self._num_samples = found, bool(found)
            self._num_misses += 1
        self._common = common
        self.is_sure = self._num_samples >= CONFIRMED_BY and bool(common)
        self._num_misses *= not self.is_sure
        self.is_over = self._num_misses > MAX_TRIES

    def objects(self, index: Any) -> Opened:
        """Return the file systems and paths that a sample is expected to open."""
        return [(self._fs, path) for path in self._guess(index)]

    def _guess(self, index: Any) -> list[str]:
        dataset, at = _innermost(self._dataset, index)
        rules = [rule for rule in self._common or () if rule.part == id(dataset)]
        found = [_path_by(rule, dataset, at) for rule in rules]
        return list(dict.fromkeys(path for path in found if path is not None))

    def _rules(self, index: Any, path: str) -> Iterator[Rule]:
        dataset, at = _innermost(self._dataset, index)
        for name, value in list(vars(dataset).items()):
            if not isinstance(value, (list, tuple, np.ndarray)) or not 0 <= at < len(value):
                continue
            for key, text in _texts(value[at]):
                before, part, after = path.rpartition(_stripped(text))
                if len(part) >= MIN_PART:
                    yield Rule(id(dataset), name, key, before, after)


def _innermost(dataset: Any, index: Any) -> tuple[Any, Any]:
    while isinstance(dataset, (Subset, ConcatDataset)):
        dataset, index = inner_dataset(dataset, index)
    return dataset, index


def _texts(entry: Any) -> Iterator[tuple[Any, str]]:
    parts: Iterable[tuple[Any, Any]] = [(None, entry)]
    if isinstance(entry, dict):
        parts = entry.items()
    elif isinstance(entry, (list, tuple, np.ndarray)):
        parts = enumerate(itertools.islice(cast("Iterable[Any]", entry), MAX_PARTS))
    for key, value in parts:
        if isinstance(value, (str, os.PathLike)):
            yield key, str(os.fspath(value))


def _stripped(text: str) -> str:
    """Return a path without the protocol, which most file systems strip."""
    return text if text.startswith(("http://", "https://")) else text.partition("://")[2] or text


def _path_by(rule: Rule, dataset: Any, at: Any) -> str | None:
    entry = getattr(dataset, rule.name)[at]
    value = entry if rule.key is None else entry[rule.key]
    return f"{rule.before}{_stripped(str(os.fspath(value)))}{rule.after}"


class ReadAhead:
    """Fetches the objects of coming samples with some threads, which start when the first guess is sure.

    Args:
        dataset: the dataset.
        tier: where the objects are held.
        num_threads: number of concurrent downloads.
    """

    def __init__(self, dataset: Any, tier: RemoteTier, *, num_threads: int) -> None:
        self._guess = PathGuess(dataset)
        self._tier = tier
        self._num_threads = num_threads
        self._hints: collections.deque[Any] = collections.deque(maxlen=MAX_HINTS)
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._in_flight = 0
        self._num_settled = 0
        """Objects in a row for which there was nothing to fetch."""
        self._is_closed = False

    def hint(self, indices: Iterable[Any]) -> None:
        """Take note of the samples to come."""
        if self._guess.is_over:
            return
        wanted = list(indices)[:: 1 if self._num_settled < MANY_SETTLED else SELDOM]
        with self._changed:
            self._hints.extend(wanted)
            self._changed.notify(len(wanted))
        self._start()

    def build(self, index: Any, build: Callable[[], Any]) -> Any:
        """Return `build()`, which builds the sample of an index, and learn what it opens."""
        if self._guess.is_over:
            return build()
        with noting() as opened:
            sample = build()
        try:
            self._guess.learn(index, opened)
        except Exception:  # a dataset's own lists may be anything
            self._guess.is_over = True
        self._start()
        return sample

    def close(self) -> None:
        """Stop the threads; unfinished downloads are given up."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        self._threads.clear()

    def _start(self) -> None:
        if self._threads or self._is_closed or not self._guess.is_sure or not self._hints:
            return
        for number in range(self._num_threads):
            thread = threading.Thread(target=self._run, name=f"hasten-read-ahead-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: those there are read ahead
                return
            self._threads.append(thread)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._hints or self._is_closed)
                if self._is_closed:
                    return
                index = self._hints.popleft()
            try:
                objects = [] if self._guess.is_over else self._guess.objects(index)
                objects = [one for one in objects if not self._tier.is_settled(*one)]
            except Exception:  # as above
                objects, self._guess.is_over = [], True
            self._num_settled = 0 if objects else self._num_settled + 1
            for fs, path in objects:
                self._tier.fetch(fs, path, self)

    def is_closed(self) -> bool:
        """Whether unfinished downloads are to be given up."""
        return self._is_closed

    @contextlib.contextmanager
    def admit(self, size: int) -> Generator[None]:
        """Hold `size` of the bytes that may be in flight; a larger object is admitted alone."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or not self._in_flight or self._in_flight + size <= MAX_IN_FLIGHT
            )
            self._in_flight += size
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= size
                self._changed.notify_all()
