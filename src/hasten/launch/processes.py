"""The processes of a launch: what they say while they run, and how all of them are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from hasten.errors import NoStepError, RecordError, Stopped
from hasten.protocol import Status, files_of, read

STALLS = 10  # times the patience for a first step, after which a script that makes no more steps is given up
GRACE = 5.0  # seconds that other training processes get to finish their windows, and children to end


class Watch:
    """One launch, looked at again and again. Its seconds are those of `clock`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folder: Path,
        *,
        patience: float,
        longest: float,
        on_status: Callable[[Status], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.exit_code: int | None = None  # None: hasten ended it
        self._process, self._folder = process, folder
        self._patience, self._longest = patience, longest
        self._on_status, self._clock = on_status, clock
        self._started = self._moved_at = clock()
        self._full_at: float | None = None
        self._stepped = False
        self._last: list[Status] | None = None

    def over(self) -> bool:
        """Whether it is. Raises NoStepError where no step, no further one, or no full window came in time."""
        code = self._process.poll()
        statuses = statuses_in(self._folder)
        trained = [s for s in statuses if s.state not in ("imported", "loading")]
        self._stepped = self._stepped or bool(trained)
        now = self._clock()
        if statuses != self._last:
            self._last, self._moved_at = statuses, now
        if statuses:
            self._on_status(max(statuses, key=lambda s: (s.num_steps, s.seconds)))
        ended_by_us = any(s.ended_by == "hasten" for s in statuses)
        if code is not None:
            self.exit_code = None if ended_by_us and code == 0 else code
            return True
        if ended_by_us:
            self._full_at = self._full_at or now
            if all(s.state == "done" for s in trained) or now - self._full_at > GRACE:
                # Its own process has left by now, unless a launcher or a parent script waits for others.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=0.5)
                return True
            return False
        self._check_patience(now, statuses)
        return False

    def _check_patience(self, now: float, statuses: Sequence[Status]) -> None:
        taken, patience = now - self._started, self._patience
        if not self._stepped and taken > patience:
            raise NoStepError(_no_step(statuses, patience))
        if self._stepped and now - self._moved_at > STALLS * patience:
            raise NoStepError(f"no further step in {STALLS * patience:.0f} s; it may hang, or raise --wait")
        if taken > self._longest:
            raise NoStepError(
                f"its steps were not measured within {self._longest:.0f} s; it may hang, or raise --wait"
            )


def _no_step(statuses: Sequence[Status], patience: float) -> str:
    waited = f"no optimizer step in {patience:.0f} s"
    if not statuses:
        return (
            f"{waited}, and no process has finished `import torch`; is this a PyTorch script? "
            "(hasten cannot instrument `python -I` or TORCH_DEVICE_BACKEND_AUTOLOAD=0)"
        )
    if backwards := max(s.num_backwards for s in statuses):
        return f"{waited}, though backward ran {backwards} times; raise --wait"
    if any(s.state == "loading" for s in statuses):
        return f"{waited}, though a loader is being read; if the first step takes longer, raise --wait"
    return f"{waited}; if the script prepares for longer, raise --wait; if it does not train, hasten cannot help"


def statuses_in(folder: Path) -> list[Status]:
    """What each process has written last; what is no status is not there yet."""
    found: list[Status] = []
    for path in files_of(Status, folder):
        with contextlib.suppress(OSError, RecordError):
            found.append(read(Status, path))
    return found


SHARED_MEMORY = Path("/dev/shm")


# Signals other than Ctrl-C that ask to end: the last two are what batch systems send before a time limit.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]


class HeldInterrupts:
    """Interrupts held back, from now until they are let go."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: list[tuple[int, Any]] = []
        if threading.current_thread() is threading.main_thread():
            heard = [n for n in (signal.SIGINT, *ENDING) if signal.getsignal(n) is not signal.SIG_IGN]
            for number in heard:
                self._before.append((number, signal.signal(number, lambda number, _frame: self._came.append(number))))

    def let_go(self) -> None:
        """Raises KeyboardInterrupt where one came."""
        for number, handler in self._before:
            signal.signal(number, handler)
        if self._came:
            raise Stopped(number=self._came[0])


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
