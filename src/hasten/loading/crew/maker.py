"""Makes the samples of a ticket, and puts them where they belong.

In: tickets. Out: answers. Refuses to know whether it runs in a worker process, in a thread or in the training
process, and what is done about a sample that fails.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from dataclasses import replace
from typing import Any

import torch

from hasten.loading.cache.cache import position_of
from hasten.loading.crew.kit import Kit
from hasten.loading.crew.randomness import sample_seed
from hasten.loading.crew.tickets import Answer, Replaced, Ticket
from hasten.loading.failures import name_in, substitute
from hasten.loading.generators import ALL, has_cached_normal, kept, restore, seed_generators, snapshot
from hasten.loading.memory.arena import Arena, Place
from hasten.loading.memory.nest import Nest, finished
from hasten.loading.memory.packing import pack, unpack, write_buffers
from hasten.loading.memory.rows import MisfitError, Target
from hasten.loading.recipe import Plain, UnsplitError

LARGE = 64 << 10  # bytes of a sample: it is written to its row while it lies in the core's cache


class SampleError(Exception):
    """A sample could not be made; its cause is what was raised."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Maker:
    """One hand of the crew.

    A dataset that draws from the global generators finds them seeded for each sample. Most draw from one of them or
    from none; to seed all the same would cost more than many a sample does. So samples are made without, and when it
    turns out that somebody drew from a generator, they are made once more, and from then on that one is seeded. In a
    thread the generators are the training loop's while it runs, and are left alone.
    """

    def __init__(
        self, kit: Kit, arena: Arena, note: memoryview, *, is_process: bool = False, is_thread: bool = False
    ) -> None:
        self._kit = kit
        self._arena = arena
        self._is_process = is_process
        self._generator = torch.Generator()
        self._note = note
        self._nests: dict[int, Nest] = {}
        self._watches = kit.recipe.draws_globally and not is_thread
        self._seeded = ALL if self._watches and has_cached_normal() else frozenset[str]()
        """The generators that are seeded for each sample."""
        self._answer = Answer(-1, 0, 0)
        """That of the ticket in hand."""

    def answer(self, ticket: Ticket) -> Answer:
        """Do what the ticket asks for. What the user's code raises is in the answer."""
        began = time.thread_time()
        while (answer := self._seeded_rightly(ticket)) is None:
            pass
        self._note[0] = -1
        answer.cpu_seconds = time.thread_time() - began
        return answer

    def _seeded_rightly(self, ticket: Ticket) -> Answer | None:
        """The answer; None where somebody drew from a generator that was not seeded: from now on it is."""
        with kept() if self._seeded and not self._is_process else contextlib.nullcontext():  # the training loop's
            if not self._watches or self._seeded == ALL:
                return self._do(ticket)
            before = snapshot()
            answer = self._do(ticket)
            drawn = before.moved(snapshot())
            if drawn <= self._seeded:
                return answer
            restore(before)
            # Torch's seed may be asked for without a draw; and the training loop may make a normal number ahead.
            self._seeded |= drawn | {"torch"} if self._is_process else ALL
            return None

    def _do(self, ticket: Ticket) -> Answer:
        answer = Answer(ticket.batch, ticket.start, len(ticket.indices))
        self._answer = answer
        self._note[0] = ticket.batch
        try:
            if ticket.kind == "whole":
                self._do_whole(ticket, answer)
            else:
                self._do_samples(ticket, answer)
        except SampleError as failed:
            answer.error, answer.row = failed.__cause__, failed.row
            if not self._is_process:  # a worker process says it in the message that it sends
                name_in(answer.error, self._kit.dataset, ticket.indices[failed.row - ticket.start])
        except Exception as error:
            answer.error = error
        return answer

    # Samples for rows

    def _do_samples(self, ticket: Ticket, answer: Answer) -> None:
        nest = None if ticket.nest is None else self._nest(ticket.nest)
        if nest and ticket.slot and (self._kit.cache is not None or nest.num_bytes(1) > LARGE):
            self._do_one_by_one(ticket, answer, nest, ticket.slot)
            return
        samples: list[Any] = []
        try:
            if type(self._kit.recipe) is Plain and not self._seeded:
                self._do_plain(ticket, samples)
            else:
                for at in range(len(ticket.indices)):
                    samples.append(self._sample(ticket, at))
        finally:  # those before the one that failed are good
            began = time.perf_counter()
            if nest is None:
                answer.strays = list(enumerate(samples, ticket.start))
                answer.nest = Nest.of(samples[0], late_floats=self._kit.late_floats) if samples else None
            elif samples:
                self._put(samples, ticket, answer, nest)
            answer.collate_seconds += time.perf_counter() - began

    def _do_plain(self, ticket: Ticket, samples: list[Any]) -> None:
        """As `_sample` does it, in a third of the time: some datasets make a sample in less than a microsecond."""
        dataset, note, row = self._kit.dataset, self._note, ticket.start
        began = time.perf_counter()
        try:
            for row, index in enumerate(ticket.indices, ticket.start):
                note[1] = row
                samples.append(dataset[index])
        except Exception as error:
            raise SampleError(row) from error
        finally:
            self._answer.complete_seconds += time.perf_counter() - began

    def _do_one_by_one(self, ticket: Ticket, answer: Answer, nest: Nest, slot: Place) -> None:
        """Each is written to its row as soon as it is made: while a view of the cache's memory is sure to be there, and
        before a large sample falls out of the core's cache.
        """
        recipe, cache = self._kit.recipe, self._kit.cache
        targets = nest.targets(nest.arrays(self._arena.view(slot), ticket.length))
        row, index, began = ticket.start, None, time.perf_counter()

        def put(prepared: Any) -> list[list[object]]:
            nonlocal began
            there = time.perf_counter()
            sample = self._complete(prepared, ticket, row - ticket.start, index)
            made = time.perf_counter()
            objects = self._write(sample, row, nest, targets, answer)
            answer.prepare_seconds += there - began
            answer.complete_seconds += made - there
            began = time.perf_counter()
            answer.collate_seconds += began - made
            return objects

        try:
            for row, index in enumerate(ticket.indices, ticket.start):
                self._note[1] = row
                position = None if cache is None else position_of(index)
                if cache is None or position is None:
                    answer.objects += put(recipe.prepare(index))
                else:
                    answer.objects += cache.get(position, recipe, use=put)
        except Exception as error:
            raise SampleError(row) from error

    def _copied(self, sample: Any) -> Any:
        """The sample in memory of its own, where it may be a view of the cache's."""
        if self._kit.cache is None:
            return sample
        header, buffers, size = pack(sample)
        memory = memoryview(bytearray(size))
        write_buffers(buffers, memory)
        return unpack(header, memory).value

    def _nest(self, place: Place | Nest) -> Nest:
        if isinstance(place, Nest):
            return place
        known = self._nests.get(place.offset)
        if known is None:
            known = self._nests[place.offset] = pickle.loads(self._arena.view(place))
        return known

    def _put(self, samples: list[Any], ticket: Ticket, answer: Answer, nest: Nest) -> None:
        if ticket.slot is None:
            answer.strays = [(row, finished(sample)) for row, sample in enumerate(samples, ticket.start)]
            return
        targets = nest.targets(nest.arrays(self._arena.view(ticket.slot), ticket.length))
        try:
            answer.objects = nest.write(samples, targets, ticket.start)
        except MisfitError:
            for row, sample in enumerate(samples, ticket.start):
                answer.objects += self._write(sample, row, nest, targets, answer)

    def _write(self, sample: Any, row: int, nest: Nest, targets: list[Target], answer: Answer) -> list[list[object]]:
        try:
            return nest.write([sample], targets, row)
        except MisfitError:
            answer.strays.append((row, self._copied(finished(sample))))
            return [[]]

    # Whole batches

    def _do_whole(self, ticket: Ticket, answer: Answer) -> None:
        kit = self._kit
        samples = self._fetch(ticket, answer)
        began = time.perf_counter()
        if self._seeded:  # for a collate_fn that draws
            seed_generators(sample_seed(ticket.seed, repr(ticket.indices), 1), self._seeded)
        batch = kit.collate(samples)
        if self._is_process:
            self._pack(batch, ticket, answer)
        else:
            answer.value = batch
        answer.collate_seconds += time.perf_counter() - began

    def _fetch(self, ticket: Ticket, answer: Answer) -> Any:
        kit = self._kit
        if not kit.batched:
            return finished(self._sample(ticket, 0))
        if not kit.fetches_batches:
            return [finished(self._sample_or_substitute(ticket, at, answer)) for at in range(len(ticket.indices))]
        began = time.perf_counter()
        if self._seeded:
            seed_generators(sample_seed(ticket.seed, repr(ticket.indices), 0), self._seeded)
        samples = kit.dataset.__getitems__(ticket.indices)
        answer.complete_seconds += time.perf_counter() - began
        return samples

    def _pack(self, batch: Any, ticket: Ticket, answer: Answer) -> None:
        answer.value, buffers, answer.wanted = pack(batch)
        if ticket.slot is not None and answer.wanted <= ticket.slot.size:
            answer.in_slot = True
            write_buffers(buffers, self._arena.view(ticket.slot))
        else:
            answer.memory = bytearray(answer.wanted)
            write_buffers(buffers, memoryview(answer.memory))

    # One sample

    def _sample_or_substitute(self, ticket: Ticket, at: int, answer: Answer) -> Any:
        try:
            return self._sample(ticket, at)
        except SampleError as error:
            if self._kit.on_error == "raise":
                raise
            failed = error
        attempt = 0
        while (other := substitute(ticket.indices, at, attempt, ticket.seed)) is not None:
            attempt += 1
            try:
                sample = self._make(replace(ticket, occurrences=[-attempt] * len(ticket.indices)), at, other)
            except Exception:
                continue
            answer.replaced.append(Replaced(ticket.indices[at], other, repr(failed.__cause__)))
            return sample
        raise failed

    def _sample(self, ticket: Ticket, at: int) -> Any:
        self._note[1] = row = ticket.start + at
        try:
            return self._make(ticket, at, ticket.indices[at])
        except Exception as error:
            raise SampleError(row) from error

    def _make(self, ticket: Ticket, at: int, index: Any) -> Any:
        """The sample of an index, in memory of its own."""
        recipe, cache, answer = self._kit.recipe, self._kit.cache, self._answer
        began = time.perf_counter()

        def complete(prepared: Any) -> Any:
            between = time.perf_counter()
            answer.prepare_seconds += between - began
            made = self._copied(self._complete(prepared, ticket, at, index))
            answer.complete_seconds += time.perf_counter() - between
            return made

        position = None if cache is None else position_of(index)
        if cache is None or position is None:
            return complete(recipe.prepare(index))
        return cache.get(position, recipe, use=complete)

    def _complete(self, prepared: Any, ticket: Ticket, at: int, index: Any) -> Any:
        self._seed(ticket, at, index)
        with contextlib.suppress(UnsplitError):
            return self._kit.recipe.complete(prepared, self._generator)
        self._seed(ticket, at, index)
        return self._kit.dataset[index]

    def _seed(self, ticket: Ticket, at: int, index: Any) -> None:
        draws_itself = self._kit.recipe.draws_itself
        if self._seeded or draws_itself:
            seed = sample_seed(ticket.seed, index, ticket.occurrences[at] if ticket.occurrences else 0)
            seed_generators(seed, self._seeded)
            if draws_itself:
                self._generator.manual_seed(seed)
