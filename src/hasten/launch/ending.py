"""End all that a launch started, and remove what it could not.

In: processes that were seen. Out: none of them, and no shared memory of theirs. Refuses to touch any other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

SHARED_MEMORY = Path("/dev/shm")


class HeldInterrupts:
    """Interrupts held back, from now until they are let go."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: list[tuple[int, Any]] = []
        if threading.current_thread() is threading.main_thread():
            heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
            for number in heard:
                self._before.append((number, signal.signal(number, lambda number, _frame: self._came.append(number))))

    def let_go(self) -> None:
        """Raises KeyboardInterrupt where one came."""
        for number, handler in self._before:
            signal.signal(number, handler)
        if self._came:
            raise KeyboardInterrupt


def end_everything(
    process: subprocess.Popen[bytes], seen: Collection[tuple[int, float]], *, mark: tuple[str, str]
) -> None:
    """End the process, its children, and whatever of them has lost its parent.

    `seen` are the processes (pid, start time) that were watched; `mark` a variable of the environment, and its value,
    that all of them have inherited. An interrupt meanwhile is raised when all is done.
    """
    held = HeldInterrupts()  # one that comes now would leave some of it running
    try:
        _end(process, seen, mark)
    finally:
        held.let_go()


def _end(process: subprocess.Popen[bytes], seen: Collection[tuple[int, float]], mark: tuple[str, str]) -> None:
    left = [p for p in (_still(pid, born) for pid, born in seen) if p is not None]
    left += [p for p in _marked(*mark) if p not in left]
    # The oldest first: a shell that outlives the script it started would run its next line.
    left = sorted((p for p in left if p.pid != os.getpid()), key=_born)
    for victim in left:
        with contextlib.suppress(psutil.Error):
            victim.terminate()
    _, alive = psutil.wait_procs(left, timeout=2.0)
    for victim in alive:
        with contextlib.suppress(psutil.Error):
            victim.kill()
    psutil.wait_procs(alive, timeout=2.0)
    if process.poll() is None:
        process.kill()
    process.wait()
    _remove_shared_memory({p.pid: _born(p) for p in left} | dict(seen))


def _born(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return process.create_time()
    return 0.0


def _still(pid: int, born: float) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(process.create_time() - born) < 1.0 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _marked(variable: str, value: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(variable) == value:
                yield process


def _remove_shared_memory(ended: Mapping[int, float]) -> None:
    """Remove what torch had just made for a batch: a worker that is ended before it unlinks the file leaves it."""
    for path in SHARED_MEMORY.glob("torch_*_*_*"):
        with contextlib.suppress(OSError, ValueError):
            born = ended.get(int(path.name.split("_")[1]))
            if born is not None and path.stat().st_mtime >= born - 1.0:
                path.unlink()
