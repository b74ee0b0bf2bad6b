"""One epoch after another of batches, in their order.

In: the sampler's indices, a crew, slots. Out: batches. Refuses to know how samples are made and what becomes of the
batches. It is one of torch's loader iterators, so whatever watches those watches this one too.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin

from hasten.errors import WorkerDiedError
from hasten.loading.cache.cache import Cache
from hasten.loading.crew.processes import CrewError, Processes
from hasten.loading.crew.tickets import Answer, Ticket
from hasten.loading.epoch.drafts import Draft
from hasten.loading.epoch.epochs import Epochs
from hasten.loading.epoch.handout import hand_out, made_by_dataset, put, raise_again
from hasten.loading.epoch.order import Repeats
from hasten.loading.epoch.staffing import Look, Staff, corrected, usable_cores
from hasten.loading.epoch.transfer import Crossing, Transfer, transfer_to
from hasten.loading.failures import name_sample
from hasten.loading.memory.arena import Place
from hasten.loading.memory.nest import Nest
from hasten.loading.memory.slots import Slot
from hasten.loading.resources import Resources, makes_rows, start_crew
from hasten.loading.settings import Settings
from hasten.loading.shelf import caches_on_shelves

MOST_STRAYS = 64  # samples that fit no row, of an epoch
MOST_TICKETS = 256  # of a batch
IMPATIENT_AFTER = 0.05  # seconds in which the first sample should have shown what all are like
TICKET_SECONDS = 16e-3  # of work: less, and listening takes the workers' cores; more, and batch-mates wait


class Feed(Epochs):
    """An iterator over a Loader's batches."""

    def __init__(self, loader: DataLoader[Any], settings: Settings, resources: Resources) -> None:
        self._repeats = Repeats(loader.sampler)
        super().__init__(loader, settings)
        self._slots = resources.slots
        self._kit, self._crew = start_crew(loader, settings, resources, self._base_seed)
        self._tally = settings.record.tally
        self._replace = settings.on_error == "replace"
        self._most_replaced = settings.max_error_rate
        self._staff = Staff(loader.num_workers, loader.prefetch_factor or 1)
        self._look = Look.now(self._tally, time.perf_counter())
        self._in_order = loader.in_order or not self._crew.num_workers
        self._in_rows = makes_rows(loader)
        self._drafts: dict[int, Draft] = {}  # in their order
        self._dropped: dict[int, Draft] = {}  # nobody wants them, but workers still write to their slots
        self._unsent: deque[Ticket] = deque()
        self._next_number = 0
        self._is_over = False
        self._resources = resources
        self._nest: Nest | None = None
        self._nest_told: Place | Nest | None = None  # the nest, or where workers find it
        self._nest_slot: Slot | None = None
        self._is_impatient = False
        self._num_strays = 0
        if resources.nest is not None:
            self._know(resources.nest)
        self._last: Draft | None = None  # what was asked for by the batch that was handed out last
        self._learning: Draft | None = None  # its first sample is on its way, to show what all are like
        self._transfer = transfer_to(settings.device)
        if isinstance(self._transfer, Transfer):
            self._slots.when_returned = self._transfer.passed
        self._crossing: Crossing | None = None
        self._chunk = 1
        self._wanted = 0  # bytes of the largest batch that was collated as a whole

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, by the name under which torch's iterator has them."""
        return self._crew.processes if isinstance(self._crew, Processes) else []

    @property
    def cache(self) -> Cache | None:
        """Where its samples are kept; None where nothing is."""
        return self._resources.cache

    def remaking(self) -> Callable[[], Any] | None:
        """What makes the batch handed out last once more, by the dataset itself, each sample from its own seed.

        For who doubts that what workers, a cache and other decoders make is the dataset's own. None before the first
        batch, where a sample of it was replaced, and where batches cross to a device. What the dataset raises is passed on.
        """
        if self._last is None or self._transfer is not None:
            return None
        return functools.partial(made_by_dataset, self._last, self._kit, in_processes=self._crew.is_process)

    # An epoch

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin another epoch with the workers that are there."""
        self._drop_all()
        self._repeats = Repeats(loader.sampler)
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
        crossing = self._crossing or self._transfer.send(self._next_batch())
        self._fill()
        draft = self._ripe()
        # One that is ready begins to cross while this one trains.
        ready = draft is not None and draft.error is None
        self._crossing = self._transfer.send(self._next_batch()) if ready else None
        return self._transfer.receive(crossing)

    def _next_batch(self) -> Any:
        """The next batch, in the host's memory."""
        began = time.perf_counter()
        self._fill()
        ready = self._num_ready()
        while (draft := self._ripe()) is None:
            if not self._drafts:
                self._end_epoch()
                raise StopIteration
            self._listen()
            self._fill()
        del self._drafts[draft.number]
        if self._crew.num_workers:
            self._fill()  # before anything else, for workers may be waiting
        waited = time.perf_counter() - began
        if draft.error is not None:
            self._drop(draft)
            raise_again(draft.error)
        batch = hand_out(draft, self._nest, self._slots, self._collate_fn)
        asked = Draft(draft.number, draft.indices, draft.seed, draft.occurrences)
        self._last = None if draft.replaced else asked  # without its slot, which others wait for
        self._tally.handed(len(draft.indices), waited=waited, ready=ready)
        self._look_around()
        # What lies in a pinned slot is left as it is.
        return torch_pin(batch, self._pin_memory_device) if self._pin_memory else batch

    def _look_around(self) -> None:
        """Now and then: is memory short, and are the workers too few, too many, or too uneven."""
        seen = self._look.since(self._tally, time.perf_counter())
        if seen is None:
            return
        self._look = Look.now(self._tally, time.perf_counter())
        own = [self._kit.cache] if self._kit.cache is not None else []
        for cache in {*own, *caches_on_shelves()}:  # of other datasets too: their loaders may be gone
            cache.relieve()
        if not self._settings.staffs_itself:
            return
        self._staff = corrected(self._staff, seen, cores=usable_cores())
        try:
            self._crew.resize(self._staff.num_workers)
        except OSError:  # no more processes or memory; those that are there are well
            self._staff = replace(self._staff, num_workers=self._crew.num_workers)

    def _end_epoch(self) -> None:
        if not self._persistent_workers:
            self._crew.close()

    def _ripe(self) -> Draft | None:
        for draft in self._drafts.values():
            if not draft.num_open or draft.error is not None:
                return draft
            if self._in_order:
                return None
        return None

    def _num_ready(self) -> int:
        return sum(not draft.num_open for draft in self._drafts.values())

    # What is asked for

    def _fill(self) -> None:
        """Ask for batches until enough are on their way."""
        while True:
            while self._unsent:
                if not self._crew.send(self._unsent[0]):
                    return
                self._unsent.popleft()
            waits = self._learning is not None and not self._is_impatient
            depth = self._staff.factor * max(1, self._staff.num_workers)
            if waits or self._is_over or len(self._drafts) >= depth:
                return
            try:
                keys = next(self._keys)
            except StopIteration:
                self._is_over = True
                return
            self._open(keys)

    def _open(self, keys: Any) -> None:
        indices = self._indices(keys)
        draft = Draft(self._next_number, indices, self._seed, self._repeats.count(indices))
        self._next_number += 1
        self._drafts[draft.number] = draft
        if not indices:
            return  # to collate nothing raises, when its turn has come
        if self._in_rows and self._nest is not None:
            self._ask_rows(draft, self._nest)
        elif not self._in_rows or self._learning is not None:
            self._ask_whole(draft)
        else:
            self._learning = draft
            self._unsent.append(draft.first())

    def _ask_whole(self, draft: Draft) -> None:
        draft.slot = self._slots.take(self._wanted) if self._wanted else None
        self._unsent.append(draft.whole())

    def _ask_rows(self, draft: Draft, nest: Nest, *, start: int = 0) -> None:
        assert self._nest_told is not None
        draft.slot = self._slots.take(nest.num_bytes(len(draft.indices)))
        chunk = max(self._chunk, len(draft.indices) // MOST_TICKETS) if self._crew.num_workers else len(draft.indices)
        self._unsent.extend(draft.rows(chunk, self._nest_told, start=start))

    # What comes

    def _listen(self) -> None:
        timeout = self._timeout or None
        hurries = self._learning is not None and not self._is_impatient
        try:
            answers = self._crew.receive(IMPATIENT_AFTER if hurries else timeout)
        except CrewError as error:
            raise WorkerDiedError(error.told(self._name_at)) from None
        if not answers and hurries:
            self._is_impatient = True  # the first sample is slow: the others need not wait for what it shows
        elif not answers:
            raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
        for answer in answers:
            self._tally.made(answer)
            if answer.batch in self._drafts:
                self._take(answer, self._drafts[answer.batch])
            else:
                self._dropped[answer.batch].num_open -= answer.count
                self._drop(self._dropped[answer.batch])

    def _name_at(self, batch: int, row: int) -> str | None:
        draft = self._drafts.get(batch) or self._dropped.get(batch)
        return None if draft is None else name_sample(self._dataset, draft.indices[row])

    def _take(self, answer: Answer, draft: Draft) -> None:
        if draft is self._learning:
            self._learn(answer, draft)
            return
        self._unsent.extend(draft.take(answer, nest=self._nest_told, replace=self._replace))
        self._wanted = max(self._wanted, answer.wanted + answer.wanted // 4)
        if answer.error is None and answer.count:
            seconds = answer.prepare_seconds + answer.complete_seconds + answer.collate_seconds
            chunk = min(TICKET_SECONDS * answer.count / max(seconds, 1e-6), 1e4)
            self._chunk = max(1, round(chunk if self._chunk == 1 else 0.8 * self._chunk + 0.2 * chunk))
        if answer.strays:
            self._resources.nest = None  # the next epoch looks anew
            self._num_strays += len(answer.strays)
            if self._num_strays > MOST_STRAYS:  # samples of many shapes: their batches are made as wholes
                self._in_rows = False
        if draft.replaced and not draft.num_open:
            self._tally.replaced(draft, most=self._most_replaced)

    def _learn(self, answer: Answer, draft: Draft) -> None:
        """From the first sample: whether there are rows, and what they are like."""
        self._learning = None
        draft.num_open = 0
        nest = answer.nest
        if nest is None or not self._know(nest):
            self._in_rows = answer.error is not None  # a sample that failed shows nothing; it fails once more
            self._ask_whole(draft)
            return
        self._ask_rows(draft, nest, start=1)
        [(row, sample)] = answer.strays
        if draft.slot is None:
            draft.strays[row] = sample
        else:
            draft.objects[row] = put(sample, row, draft, nest)

    def _know(self, nest: Nest) -> bool:
        """Tell the workers what samples are like; False where that cannot be told."""
        if self._crew.is_process:
            try:
                self._nest_slot = self._slots.write_down(pickle.dumps(nest))
            except (pickle.PicklingError, AttributeError, TypeError):  # a class within a function
                return False
            self._nest_told = None if self._nest_slot is None else self._nest_slot.place
        else:
            self._nest_told = nest
        if self._nest_told is None:
            return False
        self._nest = self._resources.nest = nest
        return True

    # What nobody wants any more

    def _drop_all(self) -> None:
        self._learning = None
        self._crossing = None
        known = self._drafts | self._dropped
        for ticket in [*self._unsent, *self._crew.recall()]:
            known[ticket.batch].num_open -= len(ticket.indices)
        self._unsent.clear()
        for draft in list(self._drafts.values()):
            del self._drafts[draft.number]
            self._drop(draft)

    def _drop(self, draft: Draft) -> None:
        """Let go of a batch; its slot is free when no worker writes to it any more."""
        if draft.num_open:
            self._dropped[draft.number] = draft
        else:
            self._dropped.pop(draft.number, None)

    def __del__(self) -> None:
        if hasattr(self, "_crew"):
            self._crew.close()  # before the slots that it writes to are anybody else's
