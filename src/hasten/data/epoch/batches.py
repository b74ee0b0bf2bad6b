"""Epochs of batches in the sampler's order: requests samples from workers and returns batches as they become ready.

The iterator subclasses torch's loader iterator, so tools that instrument torch's iterators instrument this one too.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Sized
from dataclasses import replace
from typing import Any, cast

from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin

from hasten.data.epoch.base import BaseIterator
from hasten.data.epoch.handout import build_with_dataset, finish_batch, reraise, write_sample
from hasten.data.epoch.order import Lookahead, Repeats
from hasten.data.epoch.pending import PendingBatch
from hasten.data.epoch.staffing import Reading, WorkerPlan, adjusted, usable_cores
from hasten.data.epoch.state import LoaderOptions, LoaderState, makes_rows
from hasten.data.epoch.transfer import PendingCopy, Transfer, transfer_to
from hasten.data.layout.arena import Place
from hasten.data.layout.slots import Slot
from hasten.data.layout.tree import Layout
from hasten.data.memo.memo import Memo, current
from hasten.data.workers.failures import name_sample
from hasten.data.workers.processes import PoolError, ProcessPool
from hasten.data.workers.tasks import Result, Task
from hasten.errors import WorkerDiedError

MAX_UNPLACED = 64  # per epoch: samples that fit no row
MAX_TASKS = 256  # per batch
FIRST_SAMPLE_SECONDS = 0.05  # seconds to wait for the first sample, which shows the structure of all
AHEAD = 256  # samples whose remote objects are fetched before they are asked for
TASK_SECONDS = 16e-3  # of work per task: shorter ones cost the workers' cores overhead, longer ones delay batches


class BatchIterator(BaseIterator):
    """An iterator over a Loader's batches."""

    def __init__(self, loader: DataLoader[Any], options: LoaderOptions, state: LoaderState) -> None:
        self._repeats = Repeats(loader.sampler)
        self._options = options
        self._slots = state.prepare(loader, options)
        reads_ahead = state.reads_ahead(_length(loader.sampler))
        order = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._lookahead = Lookahead(order, num_samples=AHEAD) if reads_ahead else None
        super().__init__(loader, state)
        self._config, self._pool = state.start_pool(loader, options, self._base_seed, reads_ahead=reads_ahead)
        self._counts = state.counts
        self._replace = options.on_error == "replace"
        self._most_replaced = options.max_error_rate
        self._plan = WorkerPlan(self._pool.num_workers, loader.prefetch_factor or 1)
        self._reading = Reading.now(self._counts, time.perf_counter())
        self._in_order = loader.in_order or not self._pool.num_workers
        self._in_rows = makes_rows(loader) and self._pool.shares_memory
        self._pending: dict[int, PendingBatch] = {}  # in order
        self._dropped: dict[int, PendingBatch] = {}  # no longer needed, but workers still write to their slots
        self._unsent: deque[Task] = deque()
        self._next_number = 0
        self._is_over = False
        self._layout: Layout | None = None
        self._layout_sent: Place | Layout | None = None  # the layout, or where workers find it
        self._layout_slot: Slot | None = None
        self._first_is_slow = False
        self._num_unplaced = 0
        if state.layout is not None:
            self._share_layout(state.layout)
        self._last: PendingBatch | None = None  # the request of the batch returned last
        self._probe: PendingBatch | None = None  # its first sample was requested, to show the structure of all
        self._tier = state.tier
        self._transfer = transfer_to(options.device, None if self._tier is None else self._tier.stream)
        if isinstance(self._transfer, Transfer):
            self._slots.when_returned = self._transfer.fence
        self._pending_copy: PendingCopy | None = None
        self._chunk = 1
        self._whole_bytes = 0  # bytes of the largest batch that was collated as a whole

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, under the name that torch's iterator uses."""
        return self._pool.processes if isinstance(self._pool, ProcessPool) else []

    @property
    def cache(self) -> Memo | None:
        """The cache for library calls of this iterator's samples; None if nothing is cached."""
        return self._state.memo or current()

    def remaking(self) -> Callable[[], Any] | None:
        """Return a function that rebuilds the last batch with the dataset itself, each sample from its own seed.

        Used to check that workers, cache and other decoders reproduce the dataset's own batch. The function raises what
        the dataset raises.

        Returns:
            The function; None before the first batch, if one of its samples was replaced, and if batches are copied to a
            device.
        """
        if self._last is None or self._transfer is not None:
            return None
        return functools.partial(build_with_dataset, self._last, self._config, in_processes=self._pool.is_process)

    # An epoch

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Start another epoch with the existing workers."""
        self._drop_all()
        self._repeats = Repeats(loader.sampler)
        if self._lookahead is not None:
            self._lookahead.clear()
        super()._reset(loader, first_iter)
        self._is_over = False

    def _skip(self, batches: int) -> None:
        for keys in itertools.islice(self._keys, batches):
            self._repeats.count(self._indices(keys))
        super()._skip(0)

    def _indices(self, keys: Any) -> list[Any]:
        return list(keys) if self._auto_collation else [keys]

    def _next_data(self) -> Any:
        if self._transfer is None:
            return self._next_batch()
        pending_copy = self._pending_copy or self._transfer.send(self._next_batch())
        self._fill()
        pending = self._ready()
        # Start copying the next batch, if it is ready, while this one trains.
        ready = pending is not None and pending.error is None
        self._pending_copy = self._transfer.send(self._next_batch()) if ready else None
        if self._tier is not None and self._state.folders is not None and self._state.memo is not None:
            self._tier.fill(self._state.folders, self._state.memo)
        return self._transfer.receive(pending_copy)

    def _next_batch(self) -> Any:
        """Return the next batch, in host memory."""
        began = time.perf_counter()
        self._fill()
        ready = self._num_ready()
        while (pending := self._ready()) is None:
            if not self._pending:
                self._end_epoch()
                raise StopIteration
            self._listen()
            self._fill()
        del self._pending[pending.number]
        if self._pool.num_workers:
            self._fill()  # first of all, because workers may be waiting
        waited = time.perf_counter() - began
        if pending.error is not None:
            self._drop(pending)
            reraise(pending.error)
        if self._tier is not None and pending.held is not None:
            batch = self._tier.batch(pending)
        else:
            batch = finish_batch(pending, self._layout, self._slots, self._collate_fn)
            if self._tier is not None:
                self._tier.enqueue(pending.indices)
        asked = PendingBatch(pending.number, pending.indices, pending.seed, pending.occurrences)
        self._last = None if pending.replaced else asked  # without its slot, so that the slot can be reused
        self._counts.count_batch(len(pending.indices), waited=waited, ready=ready)
        self._adjust_workers()
        # Tensors in a pinned slot stay as they are.
        return torch_pin(batch, self._pin_memory_device) if self._pin_memory else batch

    def _adjust_workers(self) -> None:
        """From time to time, check whether there are too few or too many workers, or too little prefetching."""
        interval = self._reading.since(self._counts, time.perf_counter())
        if interval is None:
            return
        self._reading = Reading.now(self._counts, time.perf_counter())
        if not self._options.adjusts_workers:
            return
        self._plan = adjusted(self._plan, interval, cores=usable_cores())
        with contextlib.suppress(OSError, RuntimeError):  # no more processes, threads or memory: the others stay
            self._pool.resize(self._plan.num_workers)
        self._plan = replace(self._plan, num_workers=self._pool.num_workers)

    def _end_epoch(self) -> None:
        if not self._persistent_workers:
            self._pool.close()

    def _ready(self) -> PendingBatch | None:
        for pending in self._pending.values():
            if not pending.num_open or pending.error is not None:
                return pending
            if self._in_order:
                return None
        return None

    def _num_ready(self) -> int:
        return sum(not pending.num_open for pending in self._pending.values())

    # Requests

    def _fill(self) -> None:
        """Request batches until enough are in progress."""
        while True:
            while self._unsent:
                task = self._unsent[0]
                if self._lookahead is not None and not task.coming:
                    task.coming = self._lookahead.coming(2 * len(task.indices) + 4)
                if not self._pool.send(task):
                    return
                self._unsent.popleft()
            waits = self._probe is not None and not self._first_is_slow
            depth = self._plan.factor * max(1, self._plan.num_workers)
            if waits or self._is_over or len(self._pending) >= depth:
                return
            try:
                keys = next(self._keys) if self._lookahead is None else self._lookahead.next(self._keys)
            except StopIteration:
                self._is_over = True
                return
            self._open(keys)

    def _open(self, keys: Any) -> None:
        indices = self._indices(keys)
        pending = PendingBatch(self._next_number, indices, self._seed, self._repeats.count(indices))
        self._next_number += 1
        self._pending[pending.number] = pending
        if not indices:
            return  # collating an empty batch raises when its turn comes
        if self._in_rows and self._layout is not None:
            cuts = None if self._tier is None else self._tier.ask(pending, self._layout)
            if cuts is None:
                self._ask_rows(pending, self._layout)
            else:
                self._unsent.append(cuts)
        elif not self._in_rows or self._probe is not None:
            self._ask_whole(pending)
        else:
            self._probe = pending
            self._unsent.append(pending.first())

    def _ask_whole(self, pending: PendingBatch) -> None:
        pending.slot = self._slots.take(self._whole_bytes) if self._whole_bytes else None
        self._unsent.append(pending.whole())

    def _ask_rows(self, pending: PendingBatch, layout: Layout, *, start: int = 0) -> None:
        assert self._layout_sent is not None
        pending.slot = self._slots.take(layout.num_bytes(len(pending.indices)))
        chunk = (
            max(self._chunk, len(pending.indices) // MAX_TASKS) if self._pool.num_workers else len(pending.indices)
        )
        self._unsent.extend(pending.rows(chunk, self._layout_sent, start=start))

    # Results

    def _listen(self) -> None:
        timeout = self._timeout or None
        awaits_first = self._probe is not None and not self._first_is_slow
        try:
            results = self._pool.receive(FIRST_SAMPLE_SECONDS if awaits_first else timeout)
        except PoolError as error:
            raise WorkerDiedError(error.message(self._name_at)) from None
        if not results and awaits_first:
            self._first_is_slow = True  # the first sample is slow: do not make the others wait for it
        elif not results:
            raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
        for result in results:
            self._counts.count_result(result)
            self._state.make_forecast(len(self._dataset))  # type: ignore[arg-type]
            if result.batch in self._pending:
                self._take(result, self._pending[result.batch])
            else:
                self._dropped[result.batch].num_open -= result.count
                self._drop(self._dropped[result.batch])

    def _name_at(self, batch: int, row: int) -> str | None:
        pending = self._pending.get(batch) or self._dropped.get(batch)
        return None if pending is None else name_sample(self._dataset, pending.indices[row])

    def _take(self, result: Result, pending: PendingBatch) -> None:
        if pending is self._probe:
            self._read_layout(result, pending)
            return
        if pending.held is not None:
            self._take_cuts(result, pending)
            return
        self._unsent.extend(pending.take(result, layout=self._layout_sent, replace=self._replace))
        self._whole_bytes = max(self._whole_bytes, result.num_bytes + result.num_bytes // 4)
        if result.error is None and result.count:
            seconds = result.sample_seconds + result.collate_seconds
            chunk = min(TASK_SECONDS * result.count / max(seconds, 1e-6), 1e4)
            self._chunk = max(1, round(chunk if self._chunk == 1 else 0.8 * self._chunk + 0.2 * chunk))
        if result.unplaced:
            self._state.layout = None  # the next epoch reads the layout again
            self._num_unplaced += len(result.unplaced)
            if self._num_unplaced > MAX_UNPLACED:  # samples of many shapes: collate their batches as a whole
                self._in_rows = False
        if pending.replaced and not pending.num_open:
            self._counts.count_replaced(pending, most=self._most_replaced)

    def _read_layout(self, result: Result, pending: PendingBatch) -> None:
        """Learn from the first sample whether samples can be stored in rows, and their layout."""
        self._probe = None
        pending.num_open = 0
        layout = result.layout
        if layout is None or not self._share_layout(layout):
            self._in_rows = result.error is not None  # a failed sample shows nothing; it will fail again
            self._ask_whole(pending)
            return
        self._ask_rows(pending, layout, start=1)
        [(row, sample)] = result.unplaced
        if pending.slot is None:
            pending.unplaced[row] = sample
        else:
            pending.objects[row] = write_sample(sample, row, pending, layout)

    def _take_cuts(self, result: Result, pending: PendingBatch) -> None:
        """Store the regions to take of images on the device, or request the batch the usual way."""
        assert self._tier is not None and self._layout is not None
        pending.num_open = 0
        if self._tier.take(result, pending, self._layout):
            return
        self._counts.num_built -= result.count
        if self._in_rows:
            self._ask_rows(pending, self._layout)
        else:
            self._ask_whole(pending)

    def _share_layout(self, layout: Layout) -> bool:
        """Send the layout to the workers; False if it cannot be sent."""
        if self._pool.is_process:
            try:
                self._layout_slot = self._slots.store(pickle.dumps(layout))
            except (pickle.PicklingError, AttributeError, TypeError):  # a class defined inside a function
                return False
            self._layout_sent = None if self._layout_slot is None else self._layout_slot.place
        else:
            self._layout_sent = layout
        if self._layout_sent is None:
            return False
        self._layout = self._state.layout = layout
        return True

    # Dropped batches

    def _drop_all(self) -> None:
        self._probe = None
        self._pending_copy = None
        known = self._pending | self._dropped
        for task in [*self._unsent, *self._pool.recall()]:
            known[task.batch].num_open -= len(task.indices)
        self._unsent.clear()
        for pending in list(self._pending.values()):
            del self._pending[pending.number]
            self._drop(pending)

    def _drop(self, pending: PendingBatch) -> None:
        """Drop a batch; its slot is freed when no worker writes to it any more."""
        if pending.num_open:
            self._dropped[pending.number] = pending
        else:
            self._dropped.pop(pending.number, None)

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()  # before the slots it writes to are reused


def _length(sampler: Iterable[Any]) -> float:
    """The number of a sampler's indices; infinity where it does not know it."""
    try:
        return len(cast("Sized", sampler))
    except TypeError:
        return math.inf
