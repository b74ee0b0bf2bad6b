"""Worker threads: for Python without a global interpreter lock, and for users who ask for threads."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable

import torch

from hasten.data.layout.arena import Arena
from hasten.data.memo.table import hold_installed
from hasten.data.workers.builder import SampleBuilder
from hasten.data.workers.tasks import Result, Task, WorkerConfig


def has_gil() -> bool:
    """Whether this Python has a global interpreter lock that is enabled."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return True if enabled is None else enabled()


JOIN_SECONDS = 5.0  # seconds that a thread may take to finish its sample

Tasks = queue.SimpleQueue[Task | None]
Results = queue.SimpleQueue[Result]


class ThreadPool:
    """A pool of threads in the training process."""

    is_process = False
    shares_memory = True

    def __init__(self, config: WorkerConfig, arena: Arena) -> None:
        self.num_workers = 0
        self._tasks: Tasks = queue.SimpleQueue()
        self._results: Results = queue.SimpleQueue()
        self._config = config
        self._arena = arena
        self._threads: list[threading.Thread] = []
        release = hold_installed() if config.memo is not None else None
        self._finalizer = weakref.finalize(self, _end, self._threads, self._tasks, release)
        self.resize(config.num_workers)

    def send(self, task: Task) -> bool:
        """Put a task into the queue."""
        self._tasks.put(task)
        return True

    def receive(self, timeout: float | None) -> list[Result]:
        """Return results, or [] if none came within `timeout` seconds."""
        results: list[Result] = []
        try:
            results.append(self._results.get(timeout=timeout))
            while True:
                results.append(self._results.get_nowait())
        except queue.Empty:
            return results

    def recall(self) -> list[Task]:
        """Take back the tasks that no thread has started."""
        return _drain(self._tasks)

    def resize(self, num_workers: int) -> None:
        """Start threads, or let some exit. Raises RuntimeError if the system has no more of them."""
        for _ in range(num_workers, self.num_workers):
            self._tasks.put(None)
        self.num_workers = min(self.num_workers, num_workers)
        while self.num_workers < num_workers:
            builder = SampleBuilder(self._config, self._arena, memoryview(bytearray(16)).cast("q"), is_thread=True)
            arguments, name = (builder, self._tasks, self._results), f"hasten-worker-{self.num_workers}"
            thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
            self.num_workers += 1

    def close(self) -> None:
        """Stop the threads."""
        self._finalizer()


def _one_thread() -> contextlib.AbstractContextManager[object]:
    """OpenMP on one thread, for this thread only."""
    known = os.environ.get("KMP_DUPLICATE_LIB_OK")
    from threadpoolctl import threadpool_limits

    if known is None:  # threadpoolctl sets it, and every child would inherit it
        os.environ.pop("KMP_DUPLICATE_LIB_OK", None)
    return threadpool_limits(1, user_api="openmp")


def _work(builder: SampleBuilder, tasks: Tasks, results: Results) -> None:
    torch.empty(0)  # torch sets a new thread's number of OpenMP threads at its first operation
    try:
        with _one_thread():
            while (task := tasks.get()) is not None:
                try:
                    result = builder.result(task)
                except BaseException as error:  # a sample called sys.exit(), say: the training loop raises it
                    result = Result(task.batch, task.start, len(task.indices), error=error, row=task.start)
                results.put(result)
                del task, result  # nothing holds the slot while the thread waits
    finally:
        builder.close()


def _drain(tasks: Tasks) -> list[Task]:
    drained: list[Task] = []
    try:
        while True:
            task = tasks.get_nowait()
            if task is not None:
                drained.append(task)
    except queue.Empty:
        return drained


def _end(threads: list[threading.Thread], tasks: Tasks, release: Callable[[], None] | None) -> None:
    _drain(tasks)
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)
    if release is not None:
        release()
