"""hasten run --live: one row of the terminal, and nothing of what the script writes is torn."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from command import HASTEN, environment, run, said, write

pyte = pytest.importorskip("pyte")

ROWS, COLUMNS = 12, 80
TRAIN = """
import os, signal, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
for epoch in range(3):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        time.sleep(0.15)
        sys.stderr.write(f"\\rstep {step + 1} of 8 [{'#' * step}]")
    sys.stderr.write("\\n")
    print(f"line {epoch}", flush=True)
    END
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")]


class Terminal:
    """A command in a terminal of its own, and what it shows."""

    def __init__(self, command, cwd):
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=500)
        self.stream = pyte.ByteStream(self.screen)
        ours, theirs = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(), start_new_session=True
        )
        os.close(theirs)
        self._ours = ours
        self.last_rows = set()

    def read(self, *, until=lambda: False):
        """Take in what is written until the command has ended, or something holds."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not until():
            ready, _, _ = select.select([self._ours], [], [], 0.1)
            if ready:
                try:
                    data = os.read(self._ours, 65536)
                except OSError:
                    break
                if not data:
                    break
                self.stream.feed(data)
                self.last_rows.add(self.screen.display[-1].strip())
            elif self.process.poll() is not None:
                break
        return self

    def lines(self):
        before = ["".join(row[n].data for n in range(COLUMNS)).rstrip() for row in self.screen.history.top]
        return before + [line.rstrip() for line in self.screen.display]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def started(tmp_path):
    terminals = []

    def start(end="pass"):
        script = write(tmp_path / "train.py", TRAIN.replace("END", end))
        terminals.append(Terminal([*HASTEN, "run", "--live", "--set", "set_to_none=true", script], tmp_path))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_the_row_is_there_while_it_trains_and_gone_afterwards(started):
    terminal = started().read()
    assert terminal.process.wait() == 0
    shown = [row for row in terminal.last_rows if "samples/s" in row]
    assert shown and all("epoch" in row and "data wait" in row for row in shown)
    assert not any("samples/s" in line and "epoch" in line and "|" in line for line in terminal.screen.display)
    assert terminal.screen.margins is None, "the whole terminal scrolls again"


def test_what_the_script_writes_is_whole(started):
    lines = started().read().lines()
    assert [line for line in lines if line.startswith("line ")] == ["line 0", "line 1", "line 2"]
    assert sum(line == "step 8 of 8 [#######]" for line in lines) == 3


def test_a_killed_script_leaves_a_whole_terminal(started):
    terminal = started(end="os.kill(os.getpid(), signal.SIGKILL)").read()
    assert terminal.process.wait() == -signal.SIGKILL
    assert terminal.screen.margins is None or terminal.screen.margins == pyte.screens.Margins(0, ROWS - 1)
    assert "samples/s" not in terminal.screen.display[-1]


def test_an_interrupt_reaches_the_script_alone(started):
    terminal = started()
    terminal.read(until=lambda: any("samples/s" in row for row in terminal.last_rows))
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.read()
    assert terminal.process.wait() in (130, 1, -signal.SIGINT)
    assert any("KeyboardInterrupt" in line for line in terminal.lines())


def test_in_a_pipe_nothing_is_drawn(tmp_path):
    script = write(tmp_path / "train.py", TRAIN.replace("END", "pass"))
    answer = run("run", "--live", "--set", "set_to_none=true", script, cwd=tmp_path)
    assert answer.returncode == 0 and "\x1b" not in answer.stdout + answer.stderr
    assert "samples/s over" in said(answer)
