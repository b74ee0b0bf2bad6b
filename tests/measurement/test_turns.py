"""Two launches take turns: while one works, nothing of the other does; and nothing stands for ever."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from hasten.launch import turns
from hasten.launch.side import Bench, SideError, SideResult, _at_equal_times, run_in_turns
from hasten.launch.turns import POSSIBLE
from hasten.tuning.trial_config import TrialConfig, spec_of

SCRIPT = """
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.002)
        with open(LOG, "a") as log:
            log.write(f"{time.perf_counter()}\\n")
        return torch.ones(2)

LOG = sys.argv[1]
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, batch in enumerate(DataLoader(Rows(), 2, num_workers=1, prefetch_factor=64)):
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    if step == LAST:
        raise ValueError("no more")
"""
LONELY = """
import sys, time
from hasten.sandbox.workspace import Workspace
from hasten.launch.side import Bench, run_in_turns
from hasten.tuning.trial_config import TrialConfig, spec_of
with Workspace() as workspace:
    bench = Bench([sys.executable, *sys.argv[1:]], workspace, patience=60.0)
    side = bench, spec_of({}, TrialConfig(seconds=60.0)), {}
    run_in_turns([side, side])
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("timing"),
    pytest.mark.skipif(not POSSIBLE, reason="needs process groups and named pipes"),
]


def side_of(workspace, name, *, last=-1, seconds=2.0):
    script = workspace.folder / f"{name}.py"
    script.write_text(SCRIPT.replace("LAST", str(last)))
    bench = Bench([sys.executable, str(script), str(workspace.folder / f"{name}.log")], workspace, patience=60.0)
    return bench, spec_of({}, TrialConfig(seconds=seconds)), {}


def spells(path, *, gap=0.05):
    """From when to when something was written, without a pause longer than `gap`."""
    times = [float(line) for line in path.read_text().split()]
    found = [[times[0], times[0]]]
    for at in times:
        if at - found[-1][1] > gap:
            found.append([at, at])
        found[-1][1] = at
    return found


def left_of(folder):
    """What was launched into the folder, or is in its name."""
    words = {p: p.info["cmdline"] or () for p in psutil.process_iter(["cmdline"])}
    return [
        p for p, line in words.items() if any(str(folder) in w for w in line) and "guard.py" not in " ".join(line)
    ]


def stands_any(folder):
    """Whether a process that was launched into the folder is stopped."""
    for process in left_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                return True
    return False


def test_while_one_works_neither_the_other_nor_its_workers_do_and_one_may_be_done_early(workspace):
    one, other = run_in_turns([side_of(workspace, "one", seconds=0.8), side_of(workspace, "other")])
    assert len(other.segments) >= len(one.segments) >= 6
    assert one.parts["regular"] == pytest.approx(0.012, abs=0.008)  # the time of the other is not in it
    first, second = spells(workspace.folder / "one.log"), spells(workspace.folder / "other.log")
    assert len(first) >= 4 and len(second) >= 4
    shared = [min(b, d) - max(a, c) for a, b in first for c, d in second]
    assert max(shared) < 0.02
    assert left_of(workspace.folder) == []


def test_a_side_that_fails_ends_the_other_too(workspace):
    with pytest.raises(SideError, match="ValueError: no more"):
        run_in_turns([side_of(workspace, "one"), side_of(workspace, "other", last=150)])
    assert left_of(workspace.folder) == []
    assert not [*workspace.folder.glob("launch-*")]


def test_a_folder_without_named_pipes_is_said_and_nothing_is_started(workspace, monkeypatch):
    def refuse(_path):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "mkfifo", refuse)
    with pytest.raises(SideError, match=r"no named pipes in .* \(Operation not supported\)"):
        run_in_turns([side_of(workspace, "one"), side_of(workspace, "other")])
    assert left_of(workspace.folder) == []


class Player:
    """A launch that asks so many times, and its pipes."""

    folder = None

    def __init__(self, name, log, *, asks):
        self.name, self.log, self.left = name, log, asks

    def __enter__(self):
        self.log.append(f"{self.name} starts")

    def __exit__(self, *_):
        self.log.append(f"{self.name} ends")

    def asked(self):
        self.left -= 1
        return self.left >= 0

    def over(self):
        return True

    def give(self):
        self.log.append(f"{self.name} works")

    def stop(self):
        self.log.append(f"{self.name} stands")

    def go_on(self):
        pass

    close = go_on


def test_sides_start_together_and_one_that_ends_leaves_the_turns_to_the_others(monkeypatch):
    log = []
    one, other, short = Player("A", log, asks=2), Player("B", log, asks=3), Player("C", log, asks=0)
    players = iter([one, other, short])
    monkeypatch.setattr(turns, "Pipes", lambda _folder: next(players))
    turns.take_turns([one, other, short])
    assert log[:5] == ["A starts", "B starts", "C starts", "A stands", "B stands"]
    assert [line for line in log if "works" in line] == ["A works", "B works", "A works", "B works", "B works"]
    assert sorted(log[-3:]) == ["A ends", "B ends", "C ends"]


@pytest.fixture
def short_path():
    """A folder in which a worker's socket still has a path that is short enough."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_nothing_stands_for_ever_where_hasten_is_gone(short_path):
    script, lonely = short_path / "one.py", short_path / "lonely.py"
    script.write_text(SCRIPT.replace("LAST", "-1"))
    lonely.write_text(LONELY)
    words = [sys.executable, str(lonely), str(script), str(short_path / "one.log")]
    environment = {**os.environ, "TMPDIR": str(short_path)}
    process = subprocess.Popen(words, cwd=short_path, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not stands_any(short_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert time.monotonic() < deadline
    process.kill()  # one stands, the other starts or warms up
    process.wait()
    deadline = time.monotonic() + 60
    while left_of(short_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left_of(short_path) == []
    while list(short_path.glob("hasten-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not list(short_path.glob("hasten-*")), "the guard removes the scratch folder"


def seen(segments, **parts):
    regular = sorted(segments)[len(segments) // 2]
    return SideResult(
        parts={"regular": regular, **parts},
        segments=segments,
        num_steps=9,
        samples_per_step=None,
        startup_seconds=1.0,
        peak_bytes=1.0,
    )


def test_sides_are_compared_turn_by_turn():
    # The machine is half as fast in three turns of one side and in four of the other.
    one, other = _at_equal_times(
        [seen([1, 1, 1, 1, 2, 2, 2]), seen([1.1, 1.1, 1.1, 2.2, 2.2, 2.2, 2.2], validation=3.0)]
    )
    assert other.parts["regular"] / one.parts["regular"] == pytest.approx(1.1)
    assert other.parts["validation"] == 3.0
