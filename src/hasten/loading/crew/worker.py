"""The life of a worker process: take a ticket, make its samples, answer.

In: what it is sent out with. Out: answers on a pipe of its own. Refuses to know the epoch. It ends when it is told
to, and by itself when its parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
from collections.abc import Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from hasten.loading.crew.kit import Kit, note_of
from hasten.loading.crew.maker import Maker
from hasten.loading.crew.tickets import Answer, Ticket, to_message
from hasten.loading.failures import name_sample
from hasten.loading.generators import seed_generators
from hasten.loading.memory.arena import Arena, Place

PARENT_IS_ASKED = 2  # seconds between looks whether the parent is still there
LARGEST_MESSAGE = 32 << 10  # bytes; a larger ticket lies in a slot, and the message says where
STOP = b"stop"


@contextlib.contextmanager
def threads_as_there(*, in_processes: bool) -> Generator[None]:
    """Compute with as many threads as the workers: how many there are decides how a long sum is rounded."""
    number = torch.get_num_threads()
    if in_processes:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if in_processes:
            torch.set_num_threads(number)


@dataclass
class Errand:
    """What one worker is sent out with."""

    kit: Kit
    number: int
    arena: Arena
    notes: Place
    """Where in it each worker notes which sample it is at."""
    tickets: socket.socket
    answers: Connection


def work(errand: Errand) -> None:
    """The whole of a worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    parent = os.getppid()
    kit, number = errand.kit, errand.number
    torch.set_num_threads(1)
    seed = kit.base_seed + number
    torch_worker._worker_info = torch_worker.WorkerInfo(  # pyright: ignore
        id=number, num_workers=kit.num_workers, seed=seed, dataset=kit.dataset
    )
    stack_without_shared_memory()
    failed: ExceptionWrapper | None = None
    try:
        seed_generators(seed)
        if kit.init is not None:
            kit.init(number)
    except Exception:
        failed = ExceptionWrapper(where=f"in DataLoader worker process {number}")
    maker = Maker(kit, errand.arena, note_of(errand.arena.view(errand.notes), number), is_process=True)
    while (ticket := _receive(errand, parent)) is not None:
        if failed is not None:
            answer = Answer(ticket.batch, ticket.start, len(ticket.indices), error=failed)  # type: ignore[arg-type]
        else:
            answer = maker.answer(ticket)
        try:
            errand.answers.send_bytes(_pickled(answer, kit, number, ticket))
        except (BrokenPipeError, ConnectionResetError):
            return  # nobody waits for it any more


def _receive(errand: Errand, parent: int) -> Ticket | None:
    while True:
        try:
            message = errand.tickets.recv(LARGEST_MESSAGE)
        except (BlockingIOError, InterruptedError):
            if os.getppid() != parent:
                return None
            continue
        except OSError:
            return None
        if not message or message == STOP:
            return None
        told: Ticket | Place = pickle.loads(message)
        return told if isinstance(told, Ticket) else pickle.loads(errand.arena.view(told))


def _pickled(answer: Answer, kit: Kit, number: int, ticket: Ticket) -> bytes:
    if answer.error is not None and not isinstance(answer.error, ExceptionWrapper):
        answer.error = _wrapped(answer, kit, number, ticket)  # type: ignore[assignment]
    try:
        return to_message(answer)
    except Exception:
        wrapped: Any = ExceptionWrapper(where=f"in DataLoader worker process {number}, sending a batch")
        return pickle.dumps(Answer(answer.batch, answer.start, answer.count, error=wrapped))


def _wrapped(answer: Answer, kit: Kit, number: int, ticket: Ticket) -> ExceptionWrapper:
    error = answer.error
    assert error is not None
    where = f"in DataLoader worker process {number}"
    at = answer.row - ticket.start
    if not kit.fetches_batches and 0 <= at < len(ticket.indices):
        where += f", at {name_sample(kit.dataset, ticket.indices[at])}"
    return ExceptionWrapper((type(error), error, error.__traceback__), where=where)


def stack_without_shared_memory() -> None:
    """Let default_collate stack in ordinary memory.

    In a worker it would take shared memory anew for each tensor, which ends in a bus error where /dev/shm is small;
    ours goes into a slot in any case.
    """
    known = torch_collate.default_collate_fn_map
    if known.get(torch.Tensor) is torch_collate.collate_tensor_fn:
        known[torch.Tensor] = _stack


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = batch[0]
    if first.is_nested or first.layout != torch.strided:
        return torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)
