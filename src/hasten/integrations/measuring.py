"""A measured block that begins and ends in a framework's callbacks, and never stops a training that works."""

from __future__ import annotations

import sys
import weakref
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
        self._abandon: weakref.finalize[[Measured], MeasuredTraining] | None = None
        self.result: Measured | None = None

    def start(self) -> None:
        """Begin to measure; what an earlier training that failed has left is removed first."""
        self.end(shows=False, failed=True)
        self.result = None
        try:
            running = measure()
            running.__enter__()
        except Exception as problem:
            print(f"hasten: the training is not measured ({problem})", file=sys.stderr)
            return
        self._running = running
        # Where a framework does not say that its training failed, the hooks go with the callback.
        self._abandon = weakref.finalize(self, _abandoned, running)

    def end(self, *, shows: bool = True, failed: bool = False) -> None:
        """End, and keep the result unless the training failed; `shows`: print it, or write its page."""
        running, self._running = self._running, None
        if running is None or self._abandon is None:
            return
        self._abandon.detach()
        if failed:
            _abandoned(running)
            return
        try:
            running.__exit__(None, None, None)
            if not running.has_result:
                return
            self.result = running
            if shows and self._html is not None:
                print(f"hasten: wrote {running.to_html(self._html)}", file=sys.stderr)
            elif shows:
                print(running)
        except HastenError as problem:  # a folder that cannot be written
            print(f"hasten: {problem}", file=sys.stderr)
        except Exception as problem:
            print(f"hasten: the result cannot be shown ({problem!r})", file=sys.stderr)


def _abandoned(running: Measured) -> None:
    error = RuntimeError("the training did not end")
    running.__exit__(type(error), error, None)
