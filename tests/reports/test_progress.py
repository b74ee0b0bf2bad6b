"""The progress line shows on a terminal only, leaves nothing behind, and keeps out of a script's way."""

import io

import pytest
from rich.console import Console

from hasten.reports.progress import ProgressLine, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console_on(file: io.StringIO, **options) -> Console:
    return Console(file=file, width=80, _environ={"TERM": "xterm"}, legacy_windows=False, **options)


def test_a_terminal_shows_what_is_being_done_and_is_clean_afterwards():
    file = Terminal()
    with progress(console_on(file, force_terminal=True)) as line:
        line.update("measuring", 30, 60)
    assert "measuring" in file.getvalue()
    assert "50%" in file.getvalue()
    assert file.getvalue().endswith("\x1b[2K")  # the line is wiped
    assert file.getvalue().count("\x1b[?25h") == 1  # the cursor is back


def test_a_pipe_gets_nothing_even_where_colour_is_forced():
    file = io.StringIO()
    with progress(console_on(file, force_terminal=True)) as line:
        line.update("measuring", 30, 60)
    assert file.getvalue() == ""


def test_a_quiet_terminal_gets_nothing():
    file = Terminal()
    with progress(console_on(file, force_terminal=True), quiet=True) as line:
        line.update("measuring", 30, 60)
    assert file.getvalue() == ""


def test_nothing_is_drawn_while_the_script_has_the_terminal():
    file = Terminal()
    with progress(console_on(file, force_terminal=True)) as line:
        line.update("starting")
        with line.aside():
            before = file.getvalue()
            line.update("measuring", 1, 2)
            assert file.getvalue() == before
        line.update("replaying batches")
    assert "measuring" not in file.getvalue()
    assert "replaying batches" in file.getvalue()


def test_the_line_is_wiped_when_the_work_fails():
    file = Terminal()
    with pytest.raises(KeyboardInterrupt), progress(console_on(file, force_terminal=True)) as line:
        line.update("measuring")
        raise KeyboardInterrupt
    assert "\x1b[?25h" in file.getvalue()


def test_frequent_updates_are_drawn_seldom():
    file = Terminal()
    now = [0.0]
    line = ProgressLine(console_on(file, force_terminal=True), shown=True, clock=lambda: now[0])
    line.update("measuring", 0, 1000)
    first = len(file.getvalue())
    for done in range(1, 100):
        line.update("measuring", done, 1000)
    assert len(file.getvalue()) == first
    now[0] = 1.0
    line.update("measuring", 100, 1000)
    assert len(file.getvalue()) > first
    line.close()


def test_markup_in_a_name_is_shown_not_obeyed():
    file = Terminal()
    with progress(console_on(file, force_terminal=True)) as line:
        line.update("measuring [red]x[/red]\x1b[0m")
    assert "[red]x[/red]\\x1b[0m" in file.getvalue()
