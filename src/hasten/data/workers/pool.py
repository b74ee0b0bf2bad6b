"""Who makes the samples: worker processes, threads, or the training process itself.

In: tasks. Out: results, in whatever order they are done. Refuses to know batches. Each pool can be asked to recall
what nobody has begun, and leaves nothing behind when it is closed.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Protocol

from hasten.data.layout.arena import Arena
from hasten.data.memo.table import hold_installed
from hasten.data.workers.builder import SampleBuilder
from hasten.data.workers.tasks import Result, Task, WorkerConfig


class WorkerPool(Protocol):
    """Makers at work."""

    num_workers: int
    is_process: bool
    """Workers have memory of their own, and share only the arena."""

    def send(self, task: Task) -> bool:
        """Take a task; False when no more can be taken now."""
        ...

    def receive(self, timeout: float | None) -> list[Result]:
        """Wait for at least one result; none came within `timeout` seconds: []. Raises PoolError."""
        ...

    def recall(self) -> list[Task]:
        """The tasks that nobody has begun: they will not be answered."""
        ...

    def resize(self, num_workers: int) -> None:
        """Take workers on, or let some go when they have done what they have begun."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


class InlinePool:
    """The training process makes its samples itself, when it needs them."""

    num_workers = 0
    is_process = False

    def __init__(self, config: WorkerConfig, arena: Arena) -> None:
        self._builder = SampleBuilder(config, arena, memoryview(bytearray(16)).cast("q"))
        self._finalizer = weakref.finalize(self, hold_installed()) if config.memo is not None else None
        self._tasks: deque[Task] = deque()

    def send(self, task: Task) -> bool:
        """Keep it until an result is wanted."""
        self._tasks.append(task)
        return True

    def receive(self, timeout: float | None) -> list[Result]:
        """Do the next task."""
        return [self._builder.result(self._tasks.popleft())]

    def recall(self) -> list[Task]:
        """All that were not done."""
        recalled = list(self._tasks)
        self._tasks.clear()
        return recalled

    def resize(self, num_workers: int) -> None:
        """There is nobody to take on."""

    def close(self) -> None:
        """Nothing was started."""
        self._tasks.clear()
        if self._finalizer is not None:
            self._finalizer()
