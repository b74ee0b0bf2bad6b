"""A progress line on the terminal that is gone when the work is done.

In: what is being done and how far it is. Out: one transient line, on a terminal only. It has no thread of its
own: it draws when it is told something, so it takes nothing from a script that is being measured. Refuses to
draw while someone else writes to the same terminal: put `with bar.aside():` around that.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from hasten.reports.sheet import legible

_BETWEEN = 0.2  # seconds between two drawings


class ProgressLine:
    """One line: what is being done, a bar where the total is known, the time so far."""

    def __init__(self, console: Console, *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._shown = shown
        self._clock = clock
        self._bar: Progress | None = None
        self._last = ("", 0.0)  # the text last drawn, and when

    def update(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Say what is being done, and how much of how much. Fit to be handed on as a plain callback."""
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

    @contextmanager
    def aside(self) -> Generator[None]:
        """Leave the terminal to others: the line is wiped, and updates draw nothing."""
        self.close()
        shown, self._shown = self._shown, False
        try:
            yield
        finally:
            self._shown = shown

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


@contextmanager
def progress(console: Console, *, quiet: bool = False) -> Generator[ProgressLine]:
    """A progress line on `console` (make it with `Console(stderr=True)`), silent off a terminal."""
    terminal = console.is_interactive and console.file.isatty()
    line = ProgressLine(console, shown=terminal and not quiet)
    try:
        yield line
    finally:
        line.close()
