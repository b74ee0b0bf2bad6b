"""The `hasten` command as a user calls it, a script to call it on, and what is left afterwards."""

import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil

import hasten

HASTEN = [sys.executable, "-m", "hasten"]
SOURCE = os.fspath(Path(hasten.__file__).parents[1])
QUICK = ["--seconds", "1", "--quick"]

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8{loader})
    for epoch in range({epochs}):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            {step}
        {epoch}
    {after}

if __name__ == "__main__":
    main()
"""


def write(path, source):
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path.name


def train(*, loader="", epochs=10**6, step="pass", epoch="pass", after="pass"):
    return TRAIN.format(loader=loader, epochs=epochs, step=step, epoch=epoch, after=after)


def environment():
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def run(*words, cwd, temporary=None, **others):
    variables = environment() | ({"TMPDIR": temporary} if temporary else {})
    return subprocess.run(
        [*HASTEN, *words], cwd=cwd, env=variables, capture_output=True, text=True, timeout=120, **others
    )


def said(answer):
    """What hasten itself said on standard error, progress aside; one line, and never a traceback of its own."""
    lines = [line for line in answer.stderr.splitlines() if re.match(r"hasten: (?!\[\d+:\d\d)", line)]
    assert len(lines) <= 1, answer.stderr
    assert "src/hasten" not in answer.stderr
    return lines[0] if lines else ""


def left_in(folder):
    return sorted(p.name for p in folder.iterdir() if p.name != "__pycache__")


def running_in(folder):
    """Processes that stand in this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == os.fspath(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.Error:
            pass
    return found


def only_run(folder):
    (record,) = (folder / ".hasten" / "runs").glob("*/run.json")
    return record


def launch_folders(folder):
    return list((folder / ".hasten").rglob("launch-*"))


def tell_of_parent(queue):
    """What a child of multiprocessing sees of itself; it is here because a spawned child finds no test file."""
    parent = multiprocessing.parent_process()
    queue.put((os.getppid() == parent.pid, sys.argv, "torch" in sys.modules, parent.name))
