"""Who makes the samples: worker processes, threads, or the training process itself.

In: tickets. Out: answers, in whatever order they are done. Refuses to know batches. Each crew can be asked to recall
what nobody has begun, and leaves nothing behind when it is closed.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from hasten.loading.crew.kit import Kit
from hasten.loading.crew.maker import Maker
from hasten.loading.crew.tickets import Answer, Ticket
from hasten.loading.memory.arena import Arena


class Crew(Protocol):
    """Makers at work."""

    num_workers: int
    is_process: bool
    """Workers have memory of their own, and share only the arena."""

    def send(self, ticket: Ticket) -> bool:
        """Take a ticket; False when no more can be taken now."""
        ...

    def receive(self, timeout: float | None) -> list[Answer]:
        """Wait for at least one answer; none came within `timeout` seconds: []. Raises CrewError."""
        ...

    def recall(self) -> list[Ticket]:
        """The tickets that nobody has begun: they will not be answered."""
        ...

    def resize(self, num_workers: int) -> None:
        """Take workers on, or let some go when they have done what they have begun."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


class Alone:
    """The training process makes its samples itself, when it needs them."""

    num_workers = 0
    is_process = False

    def __init__(self, kit: Kit, arena: Arena) -> None:
        self._maker = Maker(kit, arena, memoryview(bytearray(16)).cast("q"))
        self._tickets: deque[Ticket] = deque()

    def send(self, ticket: Ticket) -> bool:
        """Keep it until an answer is wanted."""
        self._tickets.append(ticket)
        return True

    def receive(self, timeout: float | None) -> list[Answer]:
        """Do the next ticket."""
        return [self._maker.answer(self._tickets.popleft())]

    def recall(self) -> list[Ticket]:
        """All that were not done."""
        recalled = list(self._tickets)
        self._tickets.clear()
        return recalled

    def resize(self, num_workers: int) -> None:
        """There is nobody to take on."""

    def close(self) -> None:
        """Nothing was started."""
        self._tickets.clear()
