"""Worker processes: one socket of tickets for all of them, a pipe of answers for each.

In: tickets. Out: answers. Refuses to know batches. A message on the socket goes whole to one worker, whichever is
free first: no lock that a killed worker could keep, and no worker that waits while another has a queue.
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

from hasten.loading.crew.kit import Kit, note_of
from hasten.loading.crew.tickets import Answer, Ticket, from_message
from hasten.loading.crew.worker import LARGEST_MESSAGE, PARENT_IS_ASKED, STOP, Errand, work
from hasten.loading.failures import describe_exit
from hasten.loading.memory.arena import Place
from hasten.loading.memory.slots import Slot, Slots

PATIENCE = 2.0  # seconds that a worker may take to end when it is told to


@dataclass
class Hand:
    """One worker, as its parent sees it."""

    number: int
    process: BaseProcess
    answers: Connection


class Death(NamedTuple):
    """A worker that ended, and which sample it was at; the batch is -1 when it had none."""

    number: int
    pid: int | None
    exit_code: int | None
    batch: int
    row: int


class CrewError(Exception):
    """Workers ended before their work was done."""

    def __init__(self, deaths: list[Death]) -> None:
        super().__init__(deaths)
        self.deaths = deaths

    def told(self, name_at: Callable[[int, int], str | None]) -> str:
        """In words; `name_at` gives the name of the sample in a row of a batch."""
        said: list[str] = []
        for death in self.deaths:
            sample = name_at(death.batch, death.row)
            at = f", while making {sample}" if sample else ""
            said.append(f"DataLoader worker {describe_exit(death.pid, death.exit_code)}{at}")
        return "; ".join(said)


class Processes:
    """A crew of worker processes."""

    is_process = True

    def __init__(self, kit: Kit, slots: Slots, *, context: BaseContext | None) -> None:
        assert slots.arena.is_shared
        self.num_workers = 0
        self._kit = kit
        self._slots = slots
        notes = slots.write_down(b"\xff" * 16 * kit.most_workers)
        if notes is None:
            raise MemoryError("there is no memory for a loader's slots: free some, or take fewer workers")
        self._notes = notes
        self._parcels: dict[tuple[int, int], Slot] = {}
        kind = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_DGRAM)  # macOS has no SEQPACKET
        self._sender, self._receiver = socket.socketpair(socket.AF_UNIX, kind)
        self._sender.setblocking(False)
        # Waiting workers wake up now and then; a message wakes one of them, not all.
        self._receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PARENT_IS_ASKED, 0))
        self._context: Any = context or multiprocessing
        self._hands: list[Hand] = []
        self._num_leaving = 0
        self._selector = selectors.DefaultSelector()
        self._finalizer = weakref.finalize(
            self, _end, os.getpid(), self._hands, self._sender, self._receiver, self._selector
        )
        try:
            self.resize(kit.num_workers)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[BaseProcess]:
        """The workers."""
        return [hand.process for hand in self._hands]

    def resize(self, num_workers: int) -> None:
        """Start workers, or let some go when they have done what they have begun."""
        while self.num_workers > num_workers:
            try:
                self._sender.send(STOP)
            except (BlockingIOError, InterruptedError):
                return
            self.num_workers -= 1
            self._num_leaving += 1
        taken = {hand.number for hand in self._hands}
        free = (number for number in range(self._kit.most_workers) if number not in taken)
        while self.num_workers < num_workers and (number := next(free, None)) is not None:
            self._start(number)
            self.num_workers += 1

    def _start(self, number: int) -> None:
        context = self._context
        reader, writer = context.Pipe(duplex=False)
        errand = Errand(self._kit, number, self._slots.arena, self._notes.place, self._receiver, writer)
        process = context.Process(target=work, args=(errand,), daemon=True)
        try:
            process.start()
        except (TypeError, AttributeError, pickle.PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process: with the start method "
                f"{context.get_start_method()!r} the dataset, collate_fn and worker_init_fn must be picklable. "
                "multiprocessing_context='fork' needs no pickling, where the system has it.",
                stacklevel=8,
            )
            reader.close()
            raise
        except OSError:  # no more processes, or no memory for one
            reader.close()
            raise
        finally:
            writer.close()
        hand = Hand(number, process, reader)
        self._hands.append(hand)
        self._selector.register(reader, selectors.EVENT_READ, hand)
        self._selector.register(process.sentinel, selectors.EVENT_READ, hand)

    def send(self, ticket: Ticket) -> bool:
        """Put a ticket on the socket; False while that is full."""
        message = pickle.dumps(ticket, protocol=pickle.HIGHEST_PROTOCOL)
        if len(message) > LARGEST_MESSAGE:
            parcel = self._slots.write_down(message)
            if parcel is None:
                raise MemoryError(f"no shared memory for a batch of {len(ticket.indices)} indices")
            self._parcels[ticket.batch, ticket.start] = parcel
            message = pickle.dumps(parcel.place)
        try:
            self._sender.send(message)
        except (BlockingIOError, InterruptedError):
            self._parcels.pop((ticket.batch, ticket.start), None)
            return False
        return True

    def receive(self, timeout: float | None) -> list[Answer]:
        """Answers, or [] when none came within `timeout` seconds. Raises CrewError."""
        answers: list[Answer] = []
        while not answers and (events := self._selector.select(timeout)):
            ended: dict[int, Hand] = {}
            for key, _ in events:
                hand: Hand = key.data
                try:
                    if key.fileobj is hand.answers:
                        answers.append(from_message(hand.answers.recv_bytes()))
                        continue
                except (EOFError, OSError):
                    pass
                ended[hand.number] = hand
            if ended and not answers:
                self._dismiss(ended.values())
        for answer in answers:
            self._parcels.pop((answer.batch, answer.start), None)
        return answers

    def _dismiss(self, ended: Iterable[Hand]) -> None:
        """Workers that ended: those that were let go are forgotten, the others are an error."""
        dead: list[Hand] = []
        for hand in ended:
            hand.process.join(PATIENCE)
            if self._num_leaving and not hand.process.exitcode:
                self._num_leaving -= 1
                self._selector.unregister(hand.answers)
                self._selector.unregister(hand.process.sentinel)
                self._hands.remove(hand)
                hand.answers.close()
                with contextlib.suppress(ValueError):
                    hand.process.close()
            else:
                dead.append(hand)
        if dead:
            self._report(dead)

    def _report(self, ended: list[Hand]) -> None:
        deaths: list[Death] = []
        for hand in ended:
            batch, row = note_of(self._notes.memory.data, hand.number)
            deaths.append(Death(hand.number, hand.process.pid, hand.process.exitcode, batch, row))
        self.close()
        raise CrewError(deaths)

    def recall(self) -> list[Ticket]:
        """The tickets that no worker has taken."""
        recalled: list[Ticket] = []
        for message in _drain(self._receiver):
            if message == STOP:  # nobody has left for it yet
                self.num_workers += 1
                self._num_leaving -= 1
                continue
            told: Ticket | Place = pickle.loads(message)
            ticket = told if isinstance(told, Ticket) else pickle.loads(self._slots.arena.view(told))
            self._parcels.pop((ticket.batch, ticket.start), None)
            recalled.append(ticket)
        return recalled

    def close(self) -> None:
        """End the workers: those that do not go are ended."""
        self._finalizer()


def _drain(receiver: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        while True:
            yield receiver.recv(LARGEST_MESSAGE, socket.MSG_DONTWAIT)


def _end(
    owner: int,
    hands: list[Hand],
    sender: socket.socket,
    receiver: socket.socket,
    selector: selectors.BaseSelector,
) -> None:
    if os.getpid() != owner:
        return  # a forked child drops its copy: the workers are not its own
    list(_drain(receiver))
    for _ in hands:
        with contextlib.suppress(OSError):
            sender.send(STOP)
    for hand in hands:
        hand.answers.close()  # a worker that is about to answer finds nobody
    until = time.monotonic() + PATIENCE + PARENT_IS_ASKED
    for hand in hands:
        hand.process.join(max(0.0, until - time.monotonic()))
    for hand in hands:
        if hand.process.is_alive():
            hand.process.terminate()
            hand.process.join(PATIENCE)
        if hand.process.is_alive():
            hand.process.kill()
            hand.process.join()
        with contextlib.suppress(ValueError):  # somebody else has waited for it, and took its exit code
            hand.process.close()
    hands.clear()
    selector.close()
    sender.close()
    receiver.close()
