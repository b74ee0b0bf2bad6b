"""The main loop of a worker process: take a task, build its samples, send the result.

A worker exits when asked to, and by itself when its parent is gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from hasten.data.generators import seed_generators
from hasten.data.layout.arena import Arena, Place
from hasten.data.memo.memo import use_in_process
from hasten.data.memo.table import hold_installed
from hasten.data.workers.builder import SampleBuilder
from hasten.data.workers.failures import name_sample
from hasten.data.workers.tasks import Result, Task, WorkerConfig, note_of, to_message

PARENT_CHECK_SECONDS = 2  # seconds between checks whether the parent is alive
LARGEST_MESSAGE = 32 << 10  # bytes; a larger task is stored in a slot, and the message says where
STOP = b"stop"


@contextlib.contextmanager
def match_worker_threads(*, in_processes: bool) -> Generator[None]:
    """Compute with the workers' number of threads, which determines how a long sum is rounded."""
    number = torch.get_num_threads()
    if in_processes:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if in_processes:
            torch.set_num_threads(number)


def work(
    config: WorkerConfig, number: int, arena: Arena, notes: Place, tasks: socket.socket, results: Connection
) -> None:
    """Run a worker until it is stopped.

    Args:
        config: the loader's worker configuration.
        number: the worker's number, from 0.
        arena: the memory shared with the parent.
        notes: where each worker notes which sample it is building.
        tasks: the socket from which all workers take tasks.
        results: this worker's pipe for results.
    """
    if "fsspec.asyn" in sys.modules:
        gc.freeze()  # collecting a file system of the parent would take its open connections from the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops the workers
    parent = os.getppid()
    result_of, close = prepare(config, number, arena, note_of(arena.view(notes), number))
    try:
        while (task := _receive(tasks, arena, parent)) is not None:
            try:
                results.send_bytes(_pickled(result_of(task), number))
            except (BrokenPipeError, ConnectionResetError):
                return  # the parent no longer waits for results
    finally:
        close()


def prepare(
    config: WorkerConfig,
    number: int,
    arena: Arena | None,
    note: memoryview,
    pickler: type[pickle.Pickler] | None = None,
) -> tuple[Callable[[Task], Result], Callable[[], None]]:
    """Make this process a worker, as a DataLoader does; return what runs its tasks, and what to call after the last.

    Args:
        config: the loader's worker configuration.
        number: the worker's number, from 0.
        arena: the memory shared with the parent; None if there is none.
        note: where the worker notes which sample it is building.
        pickler: serializes whole batches, if not the usual one.
    """
    torch.set_num_threads(1)
    seed = config.base_seed + number
    torch_worker._worker_info = torch_worker.WorkerInfo(  # pyright: ignore
        id=number, num_workers=config.num_workers, seed=seed, dataset=config.dataset
    )
    stack_without_shared_memory()
    if config.memo is not None:
        hold_installed()
        use_in_process(config.memo)
    failed: ExceptionWrapper | None = None
    try:
        seed_generators(seed)
        if config.init is not None:
            config.init(number)
    except Exception:
        failed = ExceptionWrapper(where=f"in DataLoader worker process {number}")
    builder = SampleBuilder(config, arena, note, is_process=True, pickler=pickler)

    def result_of(task: Task) -> Result:
        if failed is not None:
            return Result(task.batch, task.start, len(task.indices), error=failed)
        result = builder.result(task)
        if result.error is not None and not isinstance(result.error, ExceptionWrapper):
            result.error = _wrapped(result, config, number, task)
        return result

    return result_of, builder.close


def _receive(tasks: socket.socket, arena: Arena, parent: int) -> Task | None:
    while True:
        try:
            message = tasks.recv(LARGEST_MESSAGE)
        except (BlockingIOError, InterruptedError):
            if os.getppid() != parent:
                return None
            continue
        except OSError:
            return None
        if not message or message == STOP:
            return None
        received: Task | Place = pickle.loads(message)
        return received if isinstance(received, Task) else pickle.loads(arena.view(received))


def _pickled(result: Result, number: int) -> bytes:
    try:
        return to_message(result)
    except Exception:
        wrapped = ExceptionWrapper(where=f"in DataLoader worker process {number}, sending a batch")
        return pickle.dumps(Result(result.batch, result.start, result.count, error=wrapped))


def _wrapped(result: Result, config: WorkerConfig, number: int, task: Task) -> ExceptionWrapper:
    error = result.error
    assert isinstance(error, BaseException)
    where = f"in DataLoader worker process {number}"
    at = result.row - task.start
    if not config.fetches_batches and 0 <= at < len(task.indices):
        where += f", at {name_sample(config.dataset, task.indices[at])}"
    return ExceptionWrapper((type(error), error, error.__traceback__), where=where)


def stack_without_shared_memory() -> None:
    """Make default_collate stack in ordinary memory.

    In a worker it would allocate new shared memory for each tensor, which ends in a bus error if /dev/shm is small; hasten
    writes the tensors to a slot in any case.
    """
    known = torch_collate.default_collate_fn_map
    if known.get(torch.Tensor) is torch_collate.collate_tensor_fn:
        known[torch.Tensor] = _stack


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = batch[0]
    if first.is_nested or first.layout != torch.strided:
        return torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)
