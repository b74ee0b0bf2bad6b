"""Worker threads, and how much of a piece of work holds Python's global interpreter lock.

A second thread counts as fast as it can, and so takes the lock whenever it is free. What it counts less than when it is
alone is what the work held. On a busy machine it counts less as well: then the share comes out too large, which errs
towards processes.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable

import torch
from threadpoolctl import threadpool_limits

from hasten.data.layout.arena import Arena
from hasten.data.memo.table import hold_installed
from hasten.data.workers.builder import SampleBuilder
from hasten.data.workers.tasks import Result, Task, WorkerConfig

SECONDS = 0.03  # of each of the two measurements
SWITCH_SECONDS = 2e-5  # between the counter's offers to give the lock back; Python's own 5 ms are too coarse


def has_gil() -> bool:
    """Whether this Python has such a lock, and uses it."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return True if enabled is None else enabled()


def held_share(work: Callable[[], object]) -> float:
    """The share of the time of `work` for which it holds the lock. Calls it for some hundredths of a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        work()  # the first call may import, or open
        with _Counter() as counter:
            alone = counter.rate(lambda: time.sleep(SECONDS / 10))
            beside = counter.rate(work)
    finally:
        sys.setswitchinterval(before)
    return min(1.0, max(0.0, 1.0 - beside / max(alone, 1e-9)))


class _Counter:
    def __enter__(self) -> _Counter:
        self._count = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="hasten-gil", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            self._count += 1

    def rate(self, work: Callable[[], object]) -> float:
        """Counts a second while `work` is done again and again."""
        count, began = self._count, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            work()
        return (self._count - count) / (time.perf_counter() - began)


PATIENCE = 5.0  # seconds that a thread may take to end its sample

Tasks = queue.SimpleQueue[Task | None]
Results = queue.SimpleQueue[Result]


class ThreadPool:
    """A pool of threads in the training process."""

    is_process = False

    def __init__(self, config: WorkerConfig, arena: Arena) -> None:
        self.num_workers = 0
        self._tasks: Tasks = queue.SimpleQueue()
        self._results: Results = queue.SimpleQueue()
        self._config = config
        self._arena = arena
        self._threads: list[threading.Thread] = []
        self.resize(config.num_workers)
        release = hold_installed() if config.memo is not None else None
        self._finalizer = weakref.finalize(self, _end, self._threads, self._tasks, release)

    def send(self, task: Task) -> bool:
        """Put a task into the queue."""
        self._tasks.put(task)
        return True

    def receive(self, timeout: float | None) -> list[Result]:
        """Results, or [] when none came within `timeout` seconds."""
        results: list[Result] = []
        try:
            results.append(self._results.get(timeout=timeout))
            while True:
                results.append(self._results.get_nowait())
        except queue.Empty:
            return results

    def recall(self) -> list[Task]:
        """The tasks that no thread has taken."""
        return _drain(self._tasks)

    def resize(self, num_workers: int) -> None:
        """Take threads on, or let some go."""
        for _ in range(num_workers, self.num_workers):
            self._tasks.put(None)
        for number in range(self.num_workers, num_workers):
            builder = SampleBuilder(self._config, self._arena, memoryview(bytearray(16)).cast("q"), is_thread=True)
            arguments = builder, self._tasks, self._results
            thread = threading.Thread(target=_work, args=arguments, name=f"hasten-worker-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self.num_workers = num_workers

    def close(self) -> None:
        """End the threads."""
        self._finalizer()


def _work(builder: SampleBuilder, tasks: Tasks, results: Results) -> None:
    torch.empty(0)  # torch sets a new thread's number of OpenMP threads at its first operation
    with threadpool_limits(1, user_api="openmp"):  # of this thread alone
        while (task := tasks.get()) is not None:
            results.put(builder.result(task))


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
            thread.join(PATIENCE)
    if release is not None:
        release()
