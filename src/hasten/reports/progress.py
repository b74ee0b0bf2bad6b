"""Show the progress of a long command: one transient line on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from hasten import format
from hasten.reports.sheet import legible

ALMOST = 0.99  # of the expected time
_REDRAW_INTERVAL = 0.2  # seconds between two redraws
_SILENCE = 14.0  # maximum seconds between plain lines; 15 with the second that one may be late
_FIRST = 3.0  # seconds before the first plain line: a shorter command prints none


class ProgressReport(Protocol):
    """Where a command reports its progress."""

    takes_over: bool  # whether drawing would overwrite a script's own output

    def update(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Report the current stage, and how much of it is done. Can be passed on as a callback."""
        ...

    def say(self, text: str) -> None:
        """Print a result that stays on screen."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


class ProgressLine:
    """One line: the current stage, a bar where the total is known, the elapsed time, which a thread redraws each second."""

    takes_over = True

    def __init__(self, console: Console, *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._shown = shown
        self._clock = clock
        self._bar: Progress | None = None
        self._last = ("", 0.0)  # the text last drawn, and when

    def update(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Redraw the line, unless it was drawn a moment ago."""
        if not self._shown:
            return
        now = self._clock()
        finished = total is not None and done is not None and done >= total
        text_before, drawn = self._last
        if self._bar is not None and text == text_before and not finished and now < drawn + _REDRAW_INTERVAL:
            return
        self._last = (text, now)
        bar = self._bar or self._start()
        words = legible(text, encoding=self._console.encoding)
        completed = done or 0.0
        if (
            total is not None
        ):  # a task that is complete stops its clock, and what takes longer than expected is not complete
            completed = min(completed, ALMOST * total)
        for task in bar.task_ids:
            bar.update(task, description=words, total=total, completed=completed, visible=True)
        bar.refresh()

    def say(self, text: str) -> None:
        """Print a result above the line."""
        if self._shown:
            console = self._bar.console if self._bar is not None else self._console
            console.print(legible(text, encoding=self._console.encoding), markup=False, highlight=False)

    def close(self) -> None:
        """Clear the line and show the cursor again."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def _start(self) -> Progress:
        words = TextColumn("{task.description}", markup=False)
        columns = (words, BarColumn(bar_width=24), TaskProgressColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, refresh_per_second=1)
        self._bar.add_task("", total=None)
        self._bar.start()
        return self._bar


class ProgressLog:
    """Plain lines for a file, a pipe or a CI system: one for each stage, and at least one every 15 seconds.

    Args:
        console: where to print.
        expected: seconds that the whole command will take; None: unknown.
    """

    takes_over = False

    def __init__(
        self,
        console: Console,
        *,
        expected: float | None = None,
        silence: float = _SILENCE,
        first: float = _FIRST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._expected = expected
        self._silence, self._clock = silence, clock
        self._began = clock()
        self._first = self._began + first
        self._stage = ("", "")  # being worked at: its name, and how far it is
        self._printed = ("", -math.inf)  # the last stage, and when a line was printed
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="hasten-progress", daemon=True)
        self._thread.start()

    def update(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Set the stage. A new stage is printed within a second, an unchanged one every 15 seconds."""
        far = ""
        if done and total and total != self._expected:
            far = f", {format.share(min(1.0, done / total))}"
        with self._lock:
            self._stage = text, far

    def say(self, text: str) -> None:
        """Print a result."""
        with self._lock:
            self._print(text)

    def close(self) -> None:
        """Stop the thread."""
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(min(1.0, self._silence / 4)):
            with self._lock:
                (text, far), (before, printed) = self._stage, self._printed
                now = self._clock()
                if now >= self._first and text and (text != before or now >= printed + self._silence):
                    self._printed = text, printed
                    self._print(text + far)

    def _print(self, text: str) -> None:
        now = self._clock()
        self._printed = self._printed[0], now
        clock = format.clock(now - self._began)
        if self._expected is not None and now - self._began <= self._expected:
            clock += f" of about {format.clock(self._expected)}"
        words = legible(f"hasten: [{clock}] {text}", encoding=self._console.encoding)
        with contextlib.suppress(OSError):  # the reader is gone; the work continues
            self._console.file.write(f"{words}\n")
            self._console.file.flush()


@contextmanager
def progress(console: Console, *, quiet: bool = False, expected: float | None = None) -> Generator[ProgressReport]:
    """Report progress on `console` (make it with `Console(stderr=True)`).

    Args:
        quiet: do not draw a line on a terminal.
        expected: seconds that the command will take; None: unknown.
    """
    terminal = console.is_interactive and console.file.isatty()
    report = ProgressLine(console, shown=not quiet) if terminal else ProgressLog(console, expected=expected)
    try:
        yield report
    finally:
        report.close()
