"""A terminal gets one line that leaves nothing behind; a file or a pipe gets plain lines."""

import io
import threading
import time

import pytest
from rich.console import Console

from hasten.reports.progress import ProgressLine, ProgressLog, progress


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


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def log_on(file, clock, **options):
    return ProgressLog(console_on(file), silence=0.2, first=0.0, clock=clock, **options)


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_a_pipe_gets_plain_lines_even_where_color_is_forced():
    file = io.StringIO()
    with progress(console_on(file, force_terminal=True), expected=240.0) as line:
        assert not line.takes_over
        line.say("trial 1: bf16: 1.4x")
    assert file.getvalue() == "hasten: [0:00 of about 4:00] trial 1: bf16: 1.4x\n"


def test_a_command_that_takes_longer_than_expected_says_no_more_how_long_it_takes():
    file, clock = io.StringIO(), Clock()
    line = ProgressLog(console_on(file), expected=60.0, clock=clock)
    line.say("one")
    clock.now += 61
    line.say("two")
    line.close()
    assert file.getvalue() == "hasten: [0:00 of about 1:00] one\nhasten: [1:01] two\n"


def test_a_log_names_each_stage_and_is_never_silent_for_long():
    file, clock = io.StringIO(), Clock()
    log = log_on(file, clock)
    log.update("measuring the script", 3.0, 12.0)
    wait_for(lambda: file.getvalue() == "hasten: [0:00] measuring the script, 25%\n")
    log.update("measuring the script", 6.0, 12.0)
    clock.now += 75
    wait_for(lambda: file.getvalue().endswith("hasten: [1:15] measuring the script, 50%\n"))
    log.update("trying bf16")
    wait_for(lambda: file.getvalue().endswith("hasten: [1:15] trying bf16\n"))
    log.close()
    assert "hasten-progress" not in {thread.name for thread in threading.enumerate()}


def test_a_command_that_is_soon_over_logs_nothing():
    file = io.StringIO()
    with progress(console_on(file)) as line:
        line.update("reading the disk")
    assert file.getvalue() == ""


def test_a_log_that_nobody_reads_any_more_does_not_end_the_work():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    log = log_on(Closed(), Clock())
    log.say("trial 1")
    log.close()


def test_a_quiet_terminal_gets_nothing():
    file = Terminal()
    with progress(console_on(file, force_terminal=True), quiet=True) as line:
        line.update("measuring", 30, 60)
    assert file.getvalue() == ""


def test_a_result_stays_above_the_line():
    file = Terminal()
    with progress(console_on(file, force_terminal=True)) as line:
        line.update("trying bf16")
        line.say("trial 1: bf16 [1.4x]")
    assert "trial 1: bf16 [1.4x]" in file.getvalue()


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


def test_the_clock_goes_on_where_the_work_takes_longer_than_expected():
    with progress(console_on(Terminal(), force_terminal=True)) as line:
        line.update("proof", 200.0, 180.0)
        (task,) = line._bar.tasks
        first = task.elapsed
        time.sleep(0.05)
        assert task.elapsed > first and not task.finished and task.percentage < 100


def test_markup_in_a_name_is_shown_not_obeyed():
    file = Terminal()
    with progress(console_on(file, force_terminal=True)) as line:
        line.update("measuring [red]x[/red]\x1b[0m")
    assert "[red]x[/red]\\x1b[0m" in file.getvalue()
