"""Worker processes: one socket for the tasks of all workers, and one pipe per worker for its results.

Each message on the socket goes whole to one worker, whichever is free first: there is no lock that a killed worker could hold,
and no worker waits while another has a queue.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import struct
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from torch import multiprocessing

from hasten.data.layout.arena import Place
from hasten.data.layout.slots import Slot, Slots
from hasten.data.workers.failures import describe_exit
from hasten.data.workers.tasks import Result, Task, WorkerConfig, from_message, note_of
from hasten.data.workers.worker import LARGEST_MESSAGE, PARENT_CHECK_SECONDS, STOP, work

JOIN_SECONDS = 2.0  # seconds that a worker may take to exit when asked to


@dataclass
class Worker:
    """A worker process, as seen by its parent."""

    number: int
    process: BaseProcess
    results: Connection


class Death(NamedTuple):
    """A worker that exited, and the sample it was building; the batch is -1 if there was none."""

    number: int
    pid: int | None
    exit_code: int | None
    batch: int
    row: int


class PoolError(Exception):
    """Workers exited before their work was done."""

    def __init__(self, deaths: list[Death]) -> None:
        super().__init__(deaths)
        self.deaths = deaths

    def message(self, name_at: Callable[[int, int], str | None]) -> str:
        """Describe the exits; `name_at` returns the name of the sample in a row of a batch."""
        said: list[str] = []
        for death in self.deaths:
            sample = name_at(death.batch, death.row)
            at = f", while building {sample}" if sample else ""
            said.append(f"DataLoader worker {describe_exit(death.pid, death.exit_code)}{at}")
        return "; ".join(said)


class ProcessPool:
    """A pool of worker processes."""

    is_process = True
    shares_memory = True

    def __init__(self, config: WorkerConfig, slots: Slots, *, context: BaseContext | None) -> None:
        assert slots.arena.is_shared
        self.num_workers = 0
        self._config = config
        self._slots = slots
        notes = slots.store(b"\xff" * 16 * config.max_workers)
        if notes is None:
            raise MemoryError("not enough memory for the loader's slots: free some memory, or use fewer workers")
        self._notes = notes
        self._stored_tasks: dict[tuple[int, int], Slot] = {}
        kind = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_DGRAM)  # macOS has no SEQPACKET
        self._sender, self._receiver = socket.socketpair(socket.AF_UNIX, kind)
        self._sender.setblocking(False)
        # Waiting workers wake up now and then to check on the parent; a message wakes one of them, not all.
        self._receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PARENT_CHECK_SECONDS, 0))
        self._context: Any = context or multiprocessing
        self._handles: list[Worker] = []
        self._num_leaving = 0
        self._selector = selectors.DefaultSelector()
        self._finalizer = weakref.finalize(
            self, _end, os.getpid(), self._handles, self._sender, self._receiver, self._selector
        )
        try:
            self.resize(config.num_workers)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes."""
        return [worker.process for worker in self._handles]

    def resize(self, num_workers: int) -> None:
        """Start workers, or let some exit after finishing their current task."""
        while self.num_workers > num_workers:
            try:
                self._sender.send(STOP)
            except (BlockingIOError, InterruptedError):
                return
            self.num_workers -= 1
            self._num_leaving += 1
        taken = {worker.number for worker in self._handles}
        free = (number for number in range(self._config.max_workers) if number not in taken)
        while self.num_workers < num_workers and (number := next(free, None)) is not None:
            self._start(number)
            self.num_workers += 1

    def _start(self, number: int) -> None:
        context = self._context
        reader, writer = context.Pipe(duplex=False)
        arguments = self._config, number, self._slots.arena, self._notes.place, self._receiver, writer
        process = context.Process(target=work, args=arguments, daemon=True)
        try:
            process.start()
        except (TypeError, AttributeError, pickle.PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process: with the start method "
                f"{context.get_start_method()!r} the dataset, collate_fn and worker_init_fn must be picklable. "
                "multiprocessing_context='fork' needs no pickling, on systems that support it.",
                stacklevel=8,
            )
            reader.close()
            raise
        except OSError:  # no more processes, or no memory for another
            reader.close()
            raise
        finally:
            writer.close()
        worker = Worker(number, process, reader)
        self._handles.append(worker)
        self._selector.register(reader, selectors.EVENT_READ, worker)
        self._selector.register(process.sentinel, selectors.EVENT_READ, worker)

    def send(self, task: Task) -> bool:
        """Send a task over the socket; False if the socket is full."""
        message = pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
        if len(message) > LARGEST_MESSAGE:
            slot = self._slots.store(message)
            if slot is None:
                raise MemoryError(
                    f"not enough shared memory for a batch of {len(task.indices)} indices: use a smaller batch size"
                )
            self._stored_tasks[task.batch, task.start] = slot
            message = pickle.dumps(slot.place)
        try:
            self._sender.send(message)
        except (BlockingIOError, InterruptedError):
            self._stored_tasks.pop((task.batch, task.start), None)
            return False
        return True

    def receive(self, timeout: float | None) -> list[Result]:
        """Return results, or [] if none came within `timeout` seconds. Raises PoolError."""
        results: list[Result] = []
        while not results and (events := self._selector.select(timeout)):
            ended: dict[int, Worker] = {}
            for key, _ in events:
                worker: Worker = key.data
                try:
                    if key.fileobj is worker.results:
                        results.append(from_message(worker.results.recv_bytes()))
                        continue
                except (EOFError, OSError):
                    pass
                ended[worker.number] = worker
            if ended and not results:
                self._dismiss(ended.values())
        for result in results:
            self._stored_tasks.pop((result.batch, result.start), None)
        return results

    def _dismiss(self, ended: Iterable[Worker]) -> None:
        """Remove workers that were asked to exit; raise PoolError for the others."""
        dead: list[Worker] = []
        for worker in ended:
            worker.process.join(JOIN_SECONDS)
            if self._num_leaving and not worker.process.exitcode:
                self._num_leaving -= 1
                self._selector.unregister(worker.results)
                self._selector.unregister(worker.process.sentinel)
                self._handles.remove(worker)
                worker.results.close()
                with contextlib.suppress(ValueError):
                    worker.process.close()
            else:
                dead.append(worker)
        if dead:
            self._report(dead)

    def _report(self, ended: list[Worker]) -> None:
        deaths: list[Death] = []
        for worker in ended:
            batch, row = note_of(self._notes.memory.data, worker.number)
            deaths.append(Death(worker.number, worker.process.pid, worker.process.exitcode, batch, row))
        self.close()
        raise PoolError(deaths)

    def recall(self) -> list[Task]:
        """Take back the tasks that no worker has received."""
        recalled: list[Task] = []
        for message in _drain(self._receiver):
            if message == STOP:  # no worker has exited for it yet
                self.num_workers += 1
                self._num_leaving -= 1
                continue
            received: Task | Place = pickle.loads(message)
            task = received if isinstance(received, Task) else pickle.loads(self._slots.arena.view(received))
            self._stored_tasks.pop((task.batch, task.start), None)
            recalled.append(task)
        return recalled

    def close(self) -> None:
        """Stop the workers; those that do not exit in time are terminated."""
        self._finalizer()


def _drain(receiver: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        while True:
            yield receiver.recv(LARGEST_MESSAGE, socket.MSG_DONTWAIT)


def _end(
    owner: int,
    workers: list[Worker],
    sender: socket.socket,
    receiver: socket.socket,
    selector: selectors.BaseSelector,
) -> None:
    if os.getpid() != owner:
        return  # a forked child drops its copy: the workers belong to its parent
    list(_drain(receiver))
    for _ in workers:
        with contextlib.suppress(OSError):
            sender.send(STOP)
    for worker in workers:
        worker.results.close()  # a worker that is about to send a result finds the pipe closed
    until = time.monotonic() + JOIN_SECONDS + PARENT_CHECK_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, until - time.monotonic()))
    for worker in workers:
        if worker.process.is_alive():
            worker.process.terminate()
            worker.process.join(JOIN_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        with contextlib.suppress(ValueError):  # something else has waited for it, and took its exit code
            worker.process.close()
    workers.clear()
    selector.close()
    sender.close()
    receiver.close()
