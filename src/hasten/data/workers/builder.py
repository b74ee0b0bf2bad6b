"""Build the samples of a task and write them to their rows.

The code is the same in a worker process, in a thread and in the training process.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hasten.data.generators import (
    ALL,
    Snapshot,
    has_cached_normal,
    preserve_generators,
    restore,
    sample_seed,
    seed_generators,
    snapshot,
)
from hasten.data.layout.arena import Arena, Place
from hasten.data.layout.packing import pack, write_buffers
from hasten.data.layout.rows import MismatchError, Target
from hasten.data.layout.tree import Layout, with_floats
from hasten.data.memo.folders import NotKnownError, Prepared, is_threadable
from hasten.data.memo.memo import current, using
from hasten.data.memo.remote_calls import building_samples
from hasten.data.workers.failures import add_sample_note, substitute
from hasten.data.workers.read_ahead import ReadAhead
from hasten.data.workers.tasks import Replaced, Result, Task, WorkerConfig

READERS = 32  # concurrent downloads ahead, of all workers of a loader together
LARGE = 64 << 10  # bytes of a sample from which it is written to its row at once, while in the core's cache


class SampleError(Exception):
    """A sample could not be built; its cause is the exception raised."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class SampleBuilder:
    """Builds samples for one worker of a pool.

    A dataset that draws from the global generators must find them seeded for each sample. Most datasets draw from one of
    them or from none, and seeding all of them would take longer than building many a sample does. So all are seeded for the
    first task, and from then on those that it drew from. If another one turns out to have been used later, the samples of
    that task are built again, and it is seeded, too. In a thread, the training loop uses the global generators at the same
    time, so they are left alone.
    """

    def __init__(
        self,
        config: WorkerConfig,
        arena: Arena | None,
        note: memoryview,
        *,
        is_process: bool = False,
        is_thread: bool = False,
        pickler: type[pickle.Pickler] | None = None,
    ) -> None:
        """`arena` is None where tasks have no slots; `pickler` serializes whole batches."""
        self._config = config
        self._pickler = pickler
        self._arena = arena
        self._is_process = is_process
        self._generator = torch.Generator()
        self._note = note
        self._layouts: dict[int, Layout] = {}
        self._watches = not is_thread
        self._seeded = ALL if self._watches else frozenset[str]()
        """The generators that are seeded for each sample."""
        self._is_learning = self._watches and not has_cached_normal()
        """During the first task: which generators the dataset draws from."""
        self._drawn = frozenset[str]()
        self._at_seed: Snapshot | None = None
        """The generators as they were seeded last, while learning."""
        self._borrowed_checks: list[Callable[[], bool]] | None = []
        """For each sample copied from the cache: a function that says whether its cache entry is unchanged."""
        self._result = Result(-1, 0, 0)
        """The result of the current task."""
        memo = config.memo or current()
        remote = memo.remote if memo is not None and config.reads_ahead else None
        readers = -(-READERS // max(1, config.num_workers))
        self._ahead = None if remote is None else ReadAhead(config.dataset, remote, num_threads=readers)

    def close(self) -> None:
        """Stop what runs in the background."""
        if self._ahead is not None:
            self._ahead.close()

    def result(self, task: Task) -> Result:
        """Run a task and return its result, which carries any exception that the user's code raised."""
        began = time.thread_time()
        own = None if self._is_process else self._config.memo  # a worker process uses it throughout
        with using(own) if own is not None else contextlib.nullcontext(), building_samples():
            if self._config.folders is not None:
                self._config.folders.forget_transforms()
            while (result := self._do_seeded(task)) is None or not self._borrowed_are_unchanged():
                pass
        self._note[0] = -1
        result.cpu_seconds = time.thread_time() - began
        return result

    def _borrowed_are_unchanged(self) -> bool:
        """Whether the samples copied from the cache stayed unchanged; if not, they are built again without borrowing."""
        checks, self._borrowed_checks = self._borrowed_checks or [], []
        if all(is_unchanged() for is_unchanged in checks):
            return True
        self._borrowed_checks = None
        return False

    def _do_seeded(self, task: Task) -> Result | None:
        """Return the result; None if an unseeded generator was used: it is seeded from now on."""
        with (
            preserve_generators() if self._seeded and not self._is_process else contextlib.nullcontext()
        ):  # the training loop's
            if not self._watches or (self._seeded == ALL and not self._is_learning):
                return self._do(task)
            before = snapshot()
            result = self._do(task)
            if self._is_learning and self._at_seed is not None:
                self._is_learning = False
                drawn = self._drawn | self._at_seed.moved(snapshot())
                self._seeded = self._worth_seeding(drawn)
                return result
            drawn = before.moved(snapshot())
            if self._is_learning:  # the first task seeded nothing
                self._is_learning, self._seeded = False, frozenset()
            if drawn <= self._seeded:
                return result
            restore(before)
            self._seeded |= self._worth_seeding(drawn)
            return None

    def _worth_seeding(self, drawn: frozenset[str]) -> frozenset[str]:
        """What to seed of a dataset that draws from these."""
        if not drawn:
            return frozenset()
        # Torch's seed can be read without a draw, and the training loop can make NumPy cache a normal number.
        return drawn | {"torch"} if self._is_process else ALL

    def _seed(self, seed: int) -> None:
        """Seed the generators that the dataset draws from."""
        if self._is_learning and self._at_seed is not None:
            self._drawn |= self._at_seed.moved(snapshot())
        seed_generators(seed, self._seeded)
        if self._is_learning:
            self._at_seed = snapshot()

    def _do(self, task: Task) -> Result:
        result = Result(task.batch, task.start, len(task.indices))
        self._result = result
        self._note[0] = task.batch
        if task.coming and self._ahead is not None:
            self._ahead.hint(task.coming)
        try:
            if task.kind == "whole":
                self._do_whole(task, result)
            elif task.held is not None:
                self._do_cuts(task, task.held, result)
            else:
                self._do_samples(task, result)
        except SampleError as failed:
            result.error, result.row, result.error_text = failed.__cause__, failed.row, repr(failed.__cause__)
            if not self._is_process:  # a worker process adds it to the message that it sends
                add_sample_note(result.error, self._config.dataset, task.indices[failed.row - task.start])
        except Exception as error:
            result.error, result.error_text = error, repr(error)
        return result

    # Samples for rows

    def _do_samples(self, task: Task, result: Result) -> None:
        layout = None if task.layout is None else self._layout(task.layout)
        if layout and task.slot and layout.num_bytes(1) > LARGE:
            self._do_one_by_one(task, result, layout, task.slot)
            return
        samples: list[Any] = []
        try:
            if self._config.folders is None and not self._seeded and self._ahead is None:
                self._do_plain(task, samples)
            else:
                for at in range(len(task.indices)):
                    samples.append(self._sample(task, at))
        finally:  # the samples before the one that failed are valid
            began = time.perf_counter()
            if layout is None:
                result.unplaced = list(enumerate(samples, task.start))
                result.layout = Layout.of(samples[0], late_floats=self._config.late_floats) if samples else None
            elif samples:
                self._put(samples, task, result, layout)
            result.collate_seconds += time.perf_counter() - began

    def _do_plain(self, task: Task, samples: list[Any]) -> None:
        """Do what `_sample` does, in a third of the time: some datasets build a sample in less than a microsecond."""
        dataset, note, row = self._config.dataset, self._note, task.start
        began = time.perf_counter()
        try:
            for row, index in enumerate(task.indices, task.start):
                note[1] = row
                samples.append(dataset[index])
        except Exception as error:
            raise SampleError(row) from error
        finally:
            self._result.sample_seconds += time.perf_counter() - began

    def _do_one_by_one(self, task: Task, result: Result, layout: Layout, slot: Place) -> None:
        """Write each sample to its row as soon as it is built, before a large sample drops out of the core's cache."""
        targets = layout.targets(layout.arrays(self._view(slot), task.length))
        for at in range(len(task.indices)):
            sample = self._sample(task, at)
            began = time.perf_counter()
            result.objects += self._write(sample, task.start + at, layout, targets, result)
            result.collate_seconds += time.perf_counter() - began

    def _view(self, place: Place) -> memoryview:
        assert self._arena is not None
        return self._arena.view(place)

    def _layout(self, place: Place | Layout) -> Layout:
        if isinstance(place, Layout):
            return place
        known = self._layouts.get(place.offset)
        if known is None:
            known = self._layouts[place.offset] = pickle.loads(self._view(place))
        return known

    def _put(self, samples: list[Any], task: Task, result: Result, layout: Layout) -> None:
        if task.slot is None:
            result.unplaced = [(row, with_floats(sample)) for row, sample in enumerate(samples, task.start)]
            return
        targets = layout.targets(layout.arrays(self._view(task.slot), task.length))
        try:
            result.objects = layout.write(samples, targets, task.start)
        except MismatchError:
            for row, sample in enumerate(samples, task.start):
                result.objects += self._write(sample, row, layout, targets, result)

    def _write(
        self, sample: Any, row: int, layout: Layout, targets: list[Target], result: Result
    ) -> list[list[object]]:
        try:
            return layout.write([sample], targets, row)
        except MismatchError:
            result.unplaced.append((row, with_floats(sample)))
            return [[]]

    # Samples whose images are on the device

    def _do_cuts(self, task: Task, held: list[Prepared], result: Result) -> None:
        folders, began = self._config.folders, time.perf_counter()
        # If a target_transform draws from the global generators, the samples are built in full, where they are seeded.
        known = folders is not None and (not self._seeded or is_threadable(self._config.dataset))
        for at, (index, image) in enumerate(zip(task.indices, held)):
            self._note[1] = task.start + at
            crop = folders.cut_sample(index, image, self._drawing(task, at, index)) if folders and known else None
            result.unplaced.append((task.start + at, crop))
        result.sample_seconds += time.perf_counter() - began

    # Whole batches

    def _do_whole(self, task: Task, result: Result) -> None:
        config = self._config
        samples = self._fetch(task, result)
        began = time.perf_counter()
        if self._seeded:  # in case collate_fn draws
            self._seed(sample_seed(task.seed, repr(task.indices), 1))
        batch = config.collate(samples)
        if self._is_process:
            self._pack(batch, task, result)
        else:
            result.value = batch
        result.collate_seconds += time.perf_counter() - began

    def _fetch(self, task: Task, result: Result) -> Any:
        config = self._config
        if not config.batched:
            return self._in_floats(self._sample(task, 0))
        if not config.fetches_batches:
            return [self._in_floats(self._sample_or_substitute(task, at, result)) for at in range(len(task.indices))]
        began = time.perf_counter()
        if self._seeded:
            self._seed(sample_seed(task.seed, repr(task.indices), 0))
        samples = config.dataset.__getitems__(task.indices)
        result.sample_seconds += time.perf_counter() - began
        return samples

    def _in_floats(self, sample: Any) -> Any:
        return with_floats(sample) if self._config.folders is not None else sample  # nothing else makes scaled images

    def _pack(self, batch: Any, task: Task, result: Result) -> None:
        result.value, buffers, result.num_bytes = pack(batch, self._pickler)
        if task.slot is not None and result.num_bytes <= task.slot.size:
            result.in_slot = True
            write_buffers(buffers, self._view(task.slot))
        else:
            result.memory = bytearray(result.num_bytes)
            write_buffers(buffers, memoryview(result.memory))

    # One sample

    def _sample_or_substitute(self, task: Task, at: int, result: Result) -> Any:
        try:
            return self._sample(task, at)
        except SampleError as error:
            if self._config.on_error == "raise":
                raise
            failed = error
        attempt = 0
        while (other := substitute(task.indices, at, attempt, task.seed)) is not None:
            attempt += 1
            try:
                sample = self._build(replace(task, occurrences=[-attempt] * len(task.indices)), at, other)
            except Exception:
                continue
            result.replaced.append(Replaced(task.indices[at], other, repr(failed.__cause__)))
            return sample
        raise failed

    def _sample(self, task: Task, at: int) -> Any:
        self._note[1] = row = task.start + at
        try:
            return self._build(task, at, task.indices[at])
        except Exception as error:
            raise SampleError(row) from error

    def _build(self, task: Task, at: int, index: Any) -> Any:
        """Return the sample of an index."""
        began = time.perf_counter()
        try:
            if self._config.folders is not None:
                with contextlib.suppress(NotKnownError):
                    borrowed_checks = (
                        None if task.kind == "first" else self._borrowed_checks
                    )  # the first sample is stored, so it is a copy
                    return self._config.folders.sample(
                        index, self._drawing(task, at, index), borrowed_checks=borrowed_checks
                    )
            if self._seeded:
                self._seed(_seed_of(task, at, index))
            if self._ahead is not None:
                return self._ahead.build(index, lambda: self._config.dataset[index])
            return self._config.dataset[index]
        finally:
            self._result.sample_seconds += time.perf_counter() - began

    def _drawing(self, task: Task, at: int, index: Any) -> Callable[[], torch.Generator]:
        return lambda: self._generator.manual_seed(_seed_of(task, at, index))


def _seed_of(task: Task, at: int, index: Any) -> int:
    return sample_seed(task.seed, index, task.occurrences[at] if task.occurrences else 0)
