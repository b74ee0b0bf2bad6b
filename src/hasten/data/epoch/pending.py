"""A batch in the making: what has been asked for, and what has come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from hasten.data.layout.arena import Place
from hasten.data.layout.slots import Slot
from hasten.data.layout.tree import Layout
from hasten.data.memo.folders import Prepared
from hasten.data.workers.failures import substitute
from hasten.data.workers.tasks import Replaced, Result, Task


@dataclass
class PendingBatch:
    """One batch, from its order to its last row."""

    number: int
    indices: list[Any]
    """What the sampler gave; for a dataset without batching, one key."""
    seed: int
    occurrences: list[int] | None
    slot: Slot | None = None
    num_open: int = 0
    """Leaf that have been asked for and have not come."""
    objects: dict[int, list[object]] = field(default_factory=dict)
    strays: dict[int, Any] = field(default_factory=dict)
    is_whole: bool = False
    held: list[torch.Tensor] | None = None
    """On the device: the images that the samples are cut from."""
    value: Any = None
    """The whole batch; or its header, where its arrays lie in the slot or in `memory`."""
    memory: bytearray | None = None
    in_slot: bool = False
    error: BaseException | None = None
    replaced: list[Replaced] = field(default_factory=list)
    _attempts: dict[int, int] = field(default_factory=dict)
    _instead: dict[int, Any] = field(default_factory=dict)

    def whole(self) -> Task:
        """The task for all of it at once."""
        self.is_whole = True
        return self._ticket("whole", 0, self.indices, None, self.occurrences)

    def cuts(self, images: list[torch.Tensor], held: list[Prepared]) -> Task:
        """The task for what to cut from images on the device."""
        self.held = images
        return replace(self._ticket("cuts", 0, self.indices, None, self.occurrences), held=held)

    def first(self) -> Task:
        """The task for its first sample alone."""
        return self._ticket("first", 0, self.indices[:1], None, self._occurrences_at(0, 1))

    def rows(self, chunk: int, layout: Place | Layout, *, start: int = 0) -> Iterator[Task]:
        """Tasks of `chunk` samples each, from the row `start` on."""
        for row in range(start, len(self.indices), chunk):
            end = row + chunk
            yield self._ticket("rows", row, self.indices[row:end], layout, self._occurrences_at(row, end))

    def _occurrences_at(self, start: int, end: int) -> list[int] | None:
        return None if self.occurrences is None else self.occurrences[start:end]

    def _ticket(
        self,
        kind: Literal["first", "rows", "whole", "cuts"],
        row: int,
        indices: list[Any],
        layout: Place | Layout | None,
        occurrences: list[int] | None,
    ) -> Task:
        self.num_open += len(indices)
        place = None if self.slot is None else self.slot.place
        return Task(self.number, row, kind, indices, self.seed, occurrences, len(self.indices), place, layout)

    def take(self, result: Result, *, layout: Place | Layout | None, replace: bool) -> list[Task]:
        """Note what came; return what must be asked for again because a sample failed."""
        self.value, self.memory, self.in_slot = result.value, result.memory, result.in_slot
        self.strays.update(result.strays)
        self.objects.update(enumerate(result.objects, result.start))
        self.replaced += result.replaced
        self.num_open -= result.count
        for row in range(result.start, result.start + result.count):
            if row in self._instead and (result.error is None or row < result.row):
                index, error = self._instead.pop(row)
                self.replaced.append(Replaced(self.indices[row], index, error))
        if result.error is None:
            return []
        tasks = list(self._again(result, layout)) if replace and layout is not None else []
        if not tasks:
            self.error = self.error or result.error
        return tasks

    def _again(self, result: Result, layout: Place | Layout) -> Iterator[Task]:
        row = result.row
        attempt = self._attempts.get(row, 0)
        other = substitute(self.indices, row, attempt, self.seed)
        if other is None:
            return
        self._attempts[row] = attempt + 1
        first = self._instead[row][1] if row in self._instead else repr(result.error)
        self._instead[row] = other, first
        yield self._ticket("rows", row, [other], layout, [-1 - attempt])
        end = result.start + result.count
        if row + 1 < end:
            rest = self.indices[row + 1 : end]
            yield self._ticket("rows", row + 1, rest, layout, self._occurrences_at(row + 1, end))
