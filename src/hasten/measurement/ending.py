"""End all that a launch started, and remove what it could not.

In: processes that were seen. Out: none of them, and no shared memory of theirs. Refuses to touch any other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")


def end_everything(
    process: subprocess.Popen[bytes], seen: Collection[tuple[int, float]], *, mark: tuple[str, str]
) -> None:
    """End the process, its children, and whatever of them has lost its parent.

    `seen` are the processes (pid, start time) that were watched; `mark` a variable of the environment, and its value,
    that all of them have inherited.
    """
    with _uninterrupted():
        _end(process, seen, mark)


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


@contextlib.contextmanager
def _uninterrupted() -> Generator[None]:
    """A second Ctrl-C, while everything is being ended, would leave some of it running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


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
