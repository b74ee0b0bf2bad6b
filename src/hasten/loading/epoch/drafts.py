"""A batch in the making: what has been asked for, and what has come.

In: answers. Out: whether all of it is there, and what must be asked for anew. Refuses to know who makes samples, and
where slots come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hasten.loading.crew.tickets import Answer, Replaced, Ticket
from hasten.loading.failures import substitute
from hasten.loading.memory.arena import Place
from hasten.loading.memory.nest import Nest
from hasten.loading.memory.slots import Slot


@dataclass
class Draft:
    """One batch, from its order to its last row."""

    number: int
    indices: list[Any]
    """What the sampler gave; for a dataset without batching, one key."""
    seed: int
    occurrences: list[int] | None
    slot: Slot | None = None
    num_open: int = 0
    """Rows that have been asked for and have not come."""
    objects: dict[int, list[object]] = field(default_factory=dict)
    strays: dict[int, Any] = field(default_factory=dict)
    is_whole: bool = False
    value: Any = None
    """The whole batch; or its header, where its arrays lie in the slot or in `memory`."""
    memory: bytearray | None = None
    in_slot: bool = False
    error: BaseException | None = None
    replaced: list[Replaced] = field(default_factory=list)
    _attempts: dict[int, int] = field(default_factory=dict)
    _instead: dict[int, Any] = field(default_factory=dict)

    def whole(self) -> Ticket:
        """The ticket for all of it at once."""
        self.is_whole = True
        return self._ticket("whole", 0, self.indices, None, self.occurrences)

    def first(self) -> Ticket:
        """The ticket for its first sample alone."""
        return self._ticket("first", 0, self.indices[:1], None, self._occurrences_at(0, 1))

    def rows(self, chunk: int, nest: Place | Nest, *, start: int = 0) -> Iterator[Ticket]:
        """Tickets of `chunk` samples each, from the row `start` on."""
        for row in range(start, len(self.indices), chunk):
            end = row + chunk
            yield self._ticket("rows", row, self.indices[row:end], nest, self._occurrences_at(row, end))

    def _occurrences_at(self, start: int, end: int) -> list[int] | None:
        return None if self.occurrences is None else self.occurrences[start:end]

    def _ticket(
        self,
        kind: Literal["first", "rows", "whole"],
        row: int,
        indices: list[Any],
        nest: Place | Nest | None,
        occurrences: list[int] | None,
    ) -> Ticket:
        self.num_open += len(indices)
        place = None if self.slot is None else self.slot.place
        return Ticket(self.number, row, kind, indices, self.seed, occurrences, len(self.indices), place, nest)

    def take(self, answer: Answer, *, nest: Place | Nest | None, replace: bool) -> list[Ticket]:
        """Note what came; return what must be asked for again because a sample failed."""
        self.value, self.memory, self.in_slot = answer.value, answer.memory, answer.in_slot
        self.strays.update(answer.strays)
        self.objects.update(enumerate(answer.objects, answer.start))
        self.replaced += answer.replaced
        self.num_open -= answer.count
        for row in range(answer.start, answer.start + answer.count):
            if row in self._instead and (answer.error is None or row < answer.row):
                index, error = self._instead.pop(row)
                self.replaced.append(Replaced(self.indices[row], index, error))
        if answer.error is None:
            return []
        tickets = list(self._again(answer, nest)) if replace and nest is not None else []
        if not tickets:
            self.error = self.error or answer.error
        return tickets

    def _again(self, answer: Answer, nest: Place | Nest) -> Iterator[Ticket]:
        row = answer.row
        attempt = self._attempts.get(row, 0)
        other = substitute(self.indices, row, attempt, self.seed)
        if other is None:
            return
        self._attempts[row] = attempt + 1
        first = self._instead[row][1] if row in self._instead else repr(answer.error)
        self._instead[row] = other, first
        yield self._ticket("rows", row, [other], nest, [-1 - attempt])
        end = answer.start + answer.count
        if row + 1 < end:
            rest = self.indices[row + 1 : end]
            yield self._ticket("rows", row + 1, rest, nest, self._occurrences_at(row + 1, end))
