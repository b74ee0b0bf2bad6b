"""Worker threads: for recipes of which every piece is known to be safe in threads.

In: tickets. Out: answers. Refuses to know batches, and whether threads are wise.
"""

from __future__ import annotations

import queue
import threading
import weakref

import torch
from threadpoolctl import threadpool_limits

from hasten.loading.crew.kit import Kit
from hasten.loading.crew.maker import Maker
from hasten.loading.crew.tickets import Answer, Ticket
from hasten.loading.memory.arena import Arena

PATIENCE = 5.0  # seconds that a thread may take to end its sample

Tickets = queue.SimpleQueue[Ticket | None]
Answers = queue.SimpleQueue[Answer]


class Threads:
    """A crew of threads in the training process."""

    is_process = False

    def __init__(self, kit: Kit, arena: Arena) -> None:
        self.num_workers = 0
        self._tickets: Tickets = queue.SimpleQueue()
        self._answers: Answers = queue.SimpleQueue()
        self._kit = kit
        self._arena = arena
        self._threads: list[threading.Thread] = []
        self.resize(kit.num_workers)
        self._finalizer = weakref.finalize(self, _end, self._threads, self._tickets)

    def send(self, ticket: Ticket) -> bool:
        """Put a ticket into the queue."""
        self._tickets.put(ticket)
        return True

    def receive(self, timeout: float | None) -> list[Answer]:
        """Answers, or [] when none came within `timeout` seconds."""
        answers: list[Answer] = []
        try:
            answers.append(self._answers.get(timeout=timeout))
            while True:
                answers.append(self._answers.get_nowait())
        except queue.Empty:
            return answers

    def recall(self) -> list[Ticket]:
        """The tickets that no thread has taken."""
        return _drain(self._tickets)

    def resize(self, num_workers: int) -> None:
        """Take threads on, or let some go."""
        for _ in range(num_workers, self.num_workers):
            self._tickets.put(None)
        for number in range(self.num_workers, num_workers):
            maker = Maker(self._kit, self._arena, memoryview(bytearray(16)).cast("q"), is_thread=True)
            arguments = maker, self._tickets, self._answers
            thread = threading.Thread(target=_work, args=arguments, name=f"hasten-worker-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self.num_workers = num_workers

    def close(self) -> None:
        """End the threads."""
        self._finalizer()


def _work(maker: Maker, tickets: Tickets, answers: Answers) -> None:
    torch.empty(0)  # torch sets a new thread's number of OpenMP threads at its first operation
    with threadpool_limits(1, user_api="openmp"):  # of this thread alone
        while (ticket := tickets.get()) is not None:
            answers.put(maker.answer(ticket))


def _drain(tickets: Tickets) -> list[Ticket]:
    drained: list[Ticket] = []
    try:
        while True:
            ticket = tickets.get_nowait()
            if ticket is not None:
                drained.append(ticket)
    except queue.Empty:
        return drained


def _end(threads: list[threading.Thread], tickets: Tickets) -> None:
    _drain(tickets)
    for _ in threads:
        tickets.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(PATIENCE)
