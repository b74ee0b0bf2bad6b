"""Watch what a launch's processes tell, until their windows are full or the command has ended."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hasten.errors import NoStepError, RecordError
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
            raise NoStepError(f"its steps were not measured within {self._longest:.0f} s; it may hang")


def _no_step(statuses: Sequence[Status], patience: float) -> str:
    waited = f"no optimizer step in {patience:.0f} s"
    if not statuses:
        return (
            f"{waited}, and no process has finished `import torch`; is this a PyTorch script? "
            "(hasten cannot see into `python -I` or TORCH_DEVICE_BACKEND_AUTOLOAD=0)"
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
