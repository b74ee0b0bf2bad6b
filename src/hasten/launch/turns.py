"""Two launches at once that take turns: each works for a tenth of a second, A B A B.

The processes ask before each of their segments, and time their own steps within their turns. A shared machine is now fast
and now slow, for seconds at a time: launches one after another meet different machines, while turns are so short that both
meet the same. The order is not A B B A, because the second of two turns in a row would find its caches warm.

They start together, each up to the end of its first step. The first turn is the warm-up: two at once would compete for cores.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence
from pathlib import Path

from hasten.launch.launch import Launch
from hasten.protocol import TURN_ASKED, TURN_GIVEN

POLL = 0.05  # seconds between two looks at whether a launch is over

POSSIBLE = os.name == "posix" and hasattr(os, "mkfifo")


class NoTurnsError(OSError):
    """Launches cannot take turns here."""


class Pipes:
    """How one launch asks for its turn, and is given it."""

    def __init__(self, folder: Path) -> None:
        for name in (TURN_ASKED, TURN_GIVEN):
            try:
                os.mkfifo(folder / name)
            except OSError as error:  # some network and memory-card file systems have none
                raise NoTurnsError(f"no named pipes in {folder} ({error.strerror})") from None
        # Open for both ends, for there is no other yet; the launched process sees the end of it when this one is gone.
        self._asks = os.open(folder / TURN_ASKED, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._told = os.open(folder / TURN_GIVEN, os.O_RDWR | os.O_CLOEXEC)

    def asked(self) -> bool:
        """Whether it asks now, or within a moment."""
        if not select.select([self._asks], [], [], POLL)[0]:
            return False
        os.read(self._asks, 1)
        return True

    def give(self) -> None:
        """Give it a turn."""
        os.write(self._told, b".")

    def close(self) -> None:
        """A process that waits for its turn will never get it."""
        os.close(self._asks)
        os.close(self._told)


def take_turns(launches: Sequence[Launch]) -> None:
    """Enter launches, each in a process group of its own, and see both to their ends.

    Raises what `Launch.run` does, and NoTurnsError.
    """
    with contextlib.ExitStack() as around:
        started: list[tuple[Launch, Pipes]] = []
        for launch in launches:
            pipes = Pipes(launch.folder)
            around.callback(pipes.close)
            around.enter_context(launch)
            started.append((launch, pipes))
        players = [player for player in started if _asks_again(*player)]
        while players:
            for player in list(players):
                launch, pipes = player
                launch.go_on()
                pipes.give()
                if not _asks_again(launch, pipes):
                    players.remove(player)


def _asks_again(launch: Launch, pipes: Pipes) -> bool:
    """Have it work until it asks for its next turn, and stop it; False: it is over."""
    while not pipes.asked():
        if launch.over():
            return False
    launch.stop()
    return True
