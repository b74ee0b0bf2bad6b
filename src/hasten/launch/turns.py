"""Two launches at once, of which one works for a tenth of a second and then the other, A B A B.

In: launches whose processes ask for each of their segments. Out: both are over. Refuses to measure: each times its own
steps, between its turns.

A shared machine is now fast and now slow, for seconds at a time. Launches one after another meet different machines;
turns are so short that both meet the same. Not A B B A: of two turns in a row the second finds its caches warm.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence
from pathlib import Path

from hasten.launch.launch import Launch
from hasten.protocol import TURN_ASKS, TURN_TOLD

POLL = 0.05  # seconds between two looks at whether a launch is over

POSSIBLE = os.name == "posix" and hasattr(os, "mkfifo")


class NoTurnsError(OSError):
    """Launches cannot take turns here."""


class Pipes:
    """How one launch asks for its turn, and is told that it is."""

    def __init__(self, folder: Path) -> None:
        for name in (TURN_ASKS, TURN_TOLD):
            try:
                os.mkfifo(folder / name)
            except OSError as error:  # some network and memory-card file systems have none
                raise NoTurnsError(f"no named pipes in {folder} ({error.strerror})") from None
        # Open for both ends, for there is no other yet; the launched process sees the end of it when this one is gone.
        self._asks = os.open(folder / TURN_ASKS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._told = os.open(folder / TURN_TOLD, os.O_RDWR | os.O_CLOEXEC)

    def asked(self) -> bool:
        """Whether it asks now, or within a moment."""
        if not select.select([self._asks], [], [], POLL)[0]:
            return False
        os.read(self._asks, 1)
        return True

    def tell(self) -> None:
        """Give it a turn."""
        os.write(self._told, b".")

    def close(self) -> None:
        """Whoever waits for a turn now will never have it."""
        os.close(self._asks)
        os.close(self._told)


def take_turns(launches: Sequence[Launch]) -> None:
    """Enter two launches, each in a process group of its own, and see both to their ends.

    Raises what `Launch.run` does, and NoTurnsError.
    """
    with contextlib.ExitStack() as around:
        players: list[tuple[Launch, Pipes]] = []
        for launch in launches:
            pipes = Pipes(launch.folder)
            around.callback(pipes.close)
            around.enter_context(launch)
            if _asks_again(launch, pipes):  # after its warm-up, in which the others stand
                players.append((launch, pipes))
        while players:
            for player in list(players):
                launch, pipes = player
                launch.go_on()
                pipes.tell()
                if not _asks_again(launch, pipes):
                    players.remove(player)


def _asks_again(launch: Launch, pipes: Pipes) -> bool:
    """Have it work until it asks for its next turn, and stop it; False: it is over."""
    while not pipes.asked():
        if launch.over():
            return False
    launch.stop()
    return True
