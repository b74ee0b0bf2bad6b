"""What a long command is doing: one transient line on a terminal, plain lines anywhere else."""

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

_BETWEEN = 0.2  # seconds between two drawings
_SILENCE = 14.0  # seconds without a plain line, at most; with the second that it may be late, 15
_FIRST = 3.0  # seconds before the first plain line: a command that is over by then prints none


class ProgressReport(Protocol):
    """Where a command says what it is doing."""

    takes_over: bool  # whether a script's own output would be drawn over

    def update(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Say what is being done, and how much of how much. Can be handed on as a plain callback."""
        ...

    def say(self, text: str) -> None:
        """Print a result that stays."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class ProgressLine:
    """One line: what is being done, a bar where the total is known, the time so far.

    It has no thread of its own: it draws when it is told something, so it takes nothing from a measured script.
    """

    takes_over = True

    def __init__(self, console: Console, *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._shown = shown
        self._clock = clock
        self._bar: Progress | None = None
        self._last = ("", 0.0)  # the text last drawn, and when

    def update(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Draw the line anew, unless it has just been drawn."""
        if not self._shown:
            return
        now = self._clock()
        finished = total is not None and done is not None and done >= total
        text_before, drawn = self._last
        if self._bar is not None and text == text_before and not finished and now < drawn + _BETWEEN:
            return
        self._last = (text, now)
        bar = self._bar or self._start()
        words = legible(text, encoding=self._console.encoding)
        for task in bar.task_ids:
            bar.update(task, description=words, total=total, completed=done or 0.0, visible=True)
        bar.refresh()

    def say(self, text: str) -> None:
        """Print a result above the line."""
        if self._shown:
            console = self._bar.console if self._bar is not None else self._console
            console.print(legible(text, encoding=self._console.encoding), markup=False, highlight=False)

    def close(self) -> None:
        """Wipe the line and give the cursor back."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def _start(self) -> Progress:
        words = TextColumn("{task.description}", markup=False)
        columns = (words, BarColumn(bar_width=24), TaskProgressColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, auto_refresh=False)
        self._bar.add_task("", total=None)
        self._bar.start()
        return self._bar


class ProgressLog:
    """Plain lines for a file, a pipe or a CI system: one a stage, and one at least every 15 seconds.

    Args:
        console: where they go.
        expected: seconds that all of it will take; None: not known.
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
        """Note the stage; a line is printed within a second where it is new, and whenever none was for long."""
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
        """End the thread."""
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
        if self._expected is not None:
            clock += f" of about {format.clock(self._expected)}"
        words = legible(f"hasten: [{clock}] {text}", encoding=self._console.encoding)
        with contextlib.suppress(OSError):  # whoever read it is gone; the work is not
            self._console.file.write(f"{words}\n")
            self._console.file.flush()


@contextmanager
def progress(console: Console, *, quiet: bool = False, expected: float | None = None) -> Generator[ProgressReport]:
    """Report progress on `console` (make it with `Console(stderr=True)`).

    Args:
        quiet: draw no line on a terminal.
        expected: seconds that the command will take; None: not known.
    """
    terminal = console.is_interactive and console.file.isatty()
    report = ProgressLine(console, shown=not quiet) if terminal else ProgressLog(console, expected=expected)
    try:
        yield report
    finally:
        report.close()
