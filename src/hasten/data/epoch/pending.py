"""A batch in progress: the samples requested and the results received."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch._utils import ExceptionWrapper

from hasten.data.layout.arena import Place
from hasten.data.layout.slots import Slot
from hasten.data.layout.tree import Layout
from hasten.data.memo.folders import Prepared
from hasten.data.workers.failures import substitute
from hasten.data.workers.tasks import Replaced, Result, Task


@dataclass
class PendingBatch:
    """One batch, from its request to its last row."""

    number: int
    indices: list[Any]
    """The sampler's indices; for a dataset without batching, a single key."""
    seed: int
    occurrences: list[int] | None
    slot: Slot | None = None
    num_open: int = 0
    """Number of samples requested but not received."""
    objects: dict[int, list[object]] = field(default_factory=dict)
    unplaced: dict[int, Any] = field(default_factory=dict)
    is_whole: bool = False
    held: list[torch.Tensor] | None = None
    """The device's images from which the samples are cropped."""
    value: Any = None
    """The whole batch; or its header, if its arrays are in the slot or in `memory`."""
    memory: bytearray | None = None
    in_slot: bool = False
    error: BaseException | ExceptionWrapper | None = None
    replaced: list[Replaced] = field(default_factory=list)
    _attempts: dict[int, int] = field(default_factory=dict)
    _substitutes: dict[int, Any] = field(default_factory=dict)

    def whole(self) -> Task:
        """Return the task for the whole batch."""
        self.is_whole = True
        return self._task("whole", 0, self.indices, None, self.occurrences)

    def cuts(self, images: list[torch.Tensor], held: list[Prepared]) -> Task:
        """Return the task for the regions to take of images on the device."""
        self.held = images
        return replace(self._task("cuts", 0, self.indices, None, self.occurrences), held=held)

    def first(self) -> Task:
        """Return the task for the first sample alone."""
        return self._task("first", 0, self.indices[:1], None, self._occurrences_at(0, 1))

    def rows(self, chunk: int, layout: Place | Layout, *, start: int = 0) -> Iterator[Task]:
        """Yield tasks of `chunk` samples each, from row `start`."""
        for row in range(start, len(self.indices), chunk):
            end = row + chunk
            yield self._task("rows", row, self.indices[row:end], layout, self._occurrences_at(row, end))

    def _occurrences_at(self, start: int, end: int) -> list[int] | None:
        return None if self.occurrences is None else self.occurrences[start:end]

    def _task(
        self,
        kind: Literal["first", "rows", "whole", "cuts"],
        row: int,
        indices: list[Any],
        layout: Place | Layout | None,
        occurrences: list[int] | None,
    ) -> Task:
        self.num_open += len(indices)
        place = None if self.slot is None else self.slot.place
        length = len(self.indices)
        return Task(self.number, row, kind, indices, self.seed, occurrences, length, place, layout, holds=self.slot)

    def take(self, result: Result, *, layout: Place | Layout | None, replace: bool) -> list[Task]:
        """Store a result; return tasks for what must be requested again because a sample failed."""
        self.value, self.memory, self.in_slot = result.value, result.memory, result.in_slot
        self.unplaced.update(result.unplaced)
        self.objects.update(enumerate(result.objects, result.start))
        self.replaced += result.replaced
        self.num_open -= result.count
        for row in range(result.start, result.start + result.count):
            if row in self._substitutes and (result.error is None or row < result.row):
                index, error = self._substitutes.pop(row)
                self.replaced.append(Replaced(self.indices[row], index, error))
        if result.error is None:
            return []
        tasks = list(self._retry(result, layout)) if replace and layout is not None else []
        if not tasks:
            self.error = self.error or result.error
        return tasks

    def _retry(self, result: Result, layout: Place | Layout) -> Iterator[Task]:
        row = result.row
        attempt = self._attempts.get(row, 0)
        other = substitute(self.indices, row, attempt, self.seed)
        if other is None:
            return
        self._attempts[row] = attempt + 1
        first = self._substitutes[row][1] if row in self._substitutes else result.error_text
        self._substitutes[row] = other, first
        yield self._task("rows", row, [other], layout, [-1 - attempt])
        end = result.start + result.count
        if row + 1 < end:
            rest = self.indices[row + 1 : end]
            yield self._task("rows", row + 1, rest, layout, self._occurrences_at(row + 1, end))
