"""A measured block that begins and ends in a framework's callbacks, and never stops a training that works."""

from __future__ import annotations

import sys
from pathlib import Path

from hasten.errors import HastenError
from hasten.notebook import Measured, measure


class MeasuredTraining:
    """Measures from `start` to `end`, then prints the result or writes its page.

    Args:
        html: file for the HTML page; None: print a summary.
    """

    def __init__(self, html: str | Path | None = None) -> None:
        self._html = html
        self._running: Measured | None = None
        self.result: Measured | None = None

    def start(self) -> None:
        """Begin to measure."""
        self.end(RuntimeError("the training before this one did not end"))  # it failed where no callback says so
        self.result = None
        self._running = measure()
        self._running.__enter__()

    def end(self, error: BaseException | None = None) -> None:
        """End, and show the result unless there was an error."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.__exit__(type(error) if error is not None else None, error, None)
            if error is not None:
                return
            self.result = running
            if self._html is not None:
                print(f"hasten: wrote {running.to_html(self._html)}", file=sys.stderr)
            else:
                print(running)
        except HastenError as problem:  # too few steps, a folder that cannot be written: no reason to fail
            print(f"hasten: {problem}", file=sys.stderr)
