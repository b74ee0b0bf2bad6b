"""The interface of worker pools, and the pool that runs in the training process.

A pool takes tasks and returns results in the order in which they finish. It can recall tasks that no worker has started, and
leaves nothing behind when it is closed.
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
    """Workers that build samples."""

    num_workers: int
    is_process: bool
    """Workers have their own memory."""
    shares_memory: bool
    """Workers write to the arena; otherwise, results carry whole batches."""

    def send(self, task: Task) -> bool:
        """Take a task; False if the pool cannot take more now."""
        ...

    def receive(self, timeout: float | None) -> list[Result]:
        """Wait for at least one result; return [] if none came within `timeout` seconds. Raises PoolError."""
        ...

    def recall(self) -> list[Task]:
        """Take back the tasks that no worker has started; they produce no results."""
        ...

    def resize(self, num_workers: int) -> None:
        """Start workers, or let some exit after finishing their current task."""
        ...

    def close(self) -> None:
        """Stop all workers and release everything."""
        ...


class InlinePool:
    """Builds samples in the training process, when they are needed."""

    num_workers = 0
    is_process = False
    shares_memory = True

    def __init__(self, config: WorkerConfig, arena: Arena) -> None:
        self._builder = SampleBuilder(config, arena, memoryview(bytearray(16)).cast("q"))
        self._finalizer = weakref.finalize(self, hold_installed()) if config.memo is not None else None
        self._tasks: deque[Task] = deque()

    def send(self, task: Task) -> bool:
        """Queue the task until a result is requested."""
        self._tasks.append(task)
        return True

    def receive(self, timeout: float | None) -> list[Result]:
        """Run the next task."""
        return [self._builder.result(self._tasks.popleft())]

    def recall(self) -> list[Task]:
        """Take back all tasks that have not run."""
        recalled = list(self._tasks)
        self._tasks.clear()
        return recalled

    def resize(self, num_workers: int) -> None:
        """Do nothing: there are no workers."""

    def close(self) -> None:
        """Drop the queued tasks."""
        self._tasks.clear()
        self._builder.close()
        if self._finalizer is not None:
            self._finalizer()
