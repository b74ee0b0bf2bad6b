"""The command line of the search: what it refuses, what it finds, and what it leaves behind."""

import signal
import subprocess
import sys
import time

import pytest
from command import environment, left_in, run, running_in, said, write

from hasten.optimizations.catalog import enabled_in
from hasten.records import Tuning, from_json
from hasten.tuning.plan import read_plan

WAITING = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    '''Every sample is waited for, as on a slow network; more of them at a time, or keeping them, helps whatever the cores.'''

    def __len__(self):
        return 100_000  # an epoch's start, and what workers cost in it, is no part of the question

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((4,), index % 7.0), torch.tensor([index % 3.0])

def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Slow(), batch_size=8, shuffle=True)
    for epoch in range(10**6):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""
# The command, but that its launches measure for a third of the time, and its proof looks at a third of the steps. The
# budget is for a busy machine: a search ends when all was tried.
SOON = """
from hasten.cli import main
from hasten.tuning import evaluator, trial_config, tune

trial_config.TrialConfig.seconds, evaluator.MOST_STEPS = 1.0, 40
tune.Budget.diagnose_seconds, tune.DIAGNOSIS = 4.0, 2.0
raise SystemExit(main())
"""
TUNE = [sys.executable, "-c", SOON, "tune"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "no such script"),
        (["--budget", "soon", "train.py"], "is not a valid duration"),
        (["--resume", "train.py"], "no search of this command to resume"),
        (["--recipe", "train.py"], "add --metric"),
        (["--target", "0.5", "--metric", "F1: ([0-9.]+)", "train.py"], "add --recipe"),
        (["--metric", "F1: [0-9]+", "train.py"], "needs one group"),
        (["--metric", "F1: (", "train.py"], "not a valid regular expression"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(ask, tmp_path, words, message):
    write(tmp_path / "train.py", "raise SystemExit('it was started')")
    answer = ask("tune", *words)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "it was started" not in answer.stderr
    assert left_in(tmp_path) == ["train.py"]


@pytest.mark.slow
def test_a_script_that_fails_by_itself_keeps_its_exit_code(tmp_path):
    script = write(tmp_path / "train.py", "import torch\nraise ValueError('the data is bad')")
    answer = run("tune", script, cwd=tmp_path)
    assert answer.returncode == 1
    assert left_in(tmp_path) == [".hasten", "train.py"]
    assert list((tmp_path / ".hasten" / "tunings").glob("*")) == []


def tuning_in(folder):
    """The search that is saved; None as long as there is none."""
    for path in (folder / ".hasten" / "tunings").glob("*/tuning.json"):
        return from_json(Tuning, path.read_bytes(), source=str(path))
    return None


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
def test_an_interrupted_search_keeps_what_is_known_and_comes_to_a_proven_plan_when_resumed(tmp_path):
    script = write(tmp_path / "train.py", WAITING)
    process = subprocess.Popen(
        [*TUNE, "--budget", "90s", script],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for _ in range(1200):
        found = tuning_in(tmp_path)
        if (found is not None and found.trials) or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert b"hasten tune --resume" in errors
    assert running_in(tmp_path) == []
    interrupted = tuning_in(tmp_path)
    assert interrupted.state == "interrupted" and interrupted.trials

    answer = subprocess.run(
        [*TUNE, "--resume", "--budget", "90s", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert answer.returncode == 0, answer.stderr
    tuning = tuning_in(tmp_path)
    assert tuning.id == interrupted.id and tuning.trials[: len(interrupted.trials)] == interrupted.trials
    assert tuning.state == "done" and tuning.proof.verdict == "proven", answer.stdout
    assert tuning.proof.speedup.low > 1.2
    assert [sides.what for sides in tuning.proof.measured] == ["seconds a step", "loss"]
    assert "Quality check passed" in answer.stdout.splitlines()[0]
    assert left_in(tmp_path) == [".hasten", "hasten.toml", "train.py"]
    assert [p.name for p in (tmp_path / ".hasten" / "tunings" / tuning.id).iterdir()] == ["tuning.json"]
    assert running_in(tmp_path) == []

    plan = read_plan(tmp_path / "hasten.toml")
    assert enabled_in(plan.settings) == tuning.settings and plan.proof == "proven"
    assert said(run("tune", "--resume", script, cwd=tmp_path)).endswith("after its first trial; leave --resume out")
