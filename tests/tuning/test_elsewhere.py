"""Whole runs on other machines: what comes back is what a run here prints, and a machine that differs is refused."""

import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from command import SOURCE

from hasten.errors import ClusterError
from hasten.launch.side import Bench, Output, SideError
from hasten.sandbox.workspace import Workspace
from hasten.tuning import elsewhere
from hasten.tuning.elsewhere import OnSlurm, WholeTask, _digest, open_elsewhere, run_task
from hasten.tuning.evaluator import Evaluator
from hasten.tuning.metric import Metric, check_whole_runs
from hasten.tuning.trial_config import TrialConfig, spec_of

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 8)
for step in range(30):
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
print(f"accuracy {1 / (1 + loss.item()):.6f}")
open("model.pt", "w").close()
"""
PATTERN = re.compile(r"accuracy ([0-9.]+)")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")])))
    with Workspace() as workspace:
        yield Bench([sys.executable, "train.py"], workspace, patience=60.0)


def compared(bench, place):
    """The same run here and there; nothing of either is left in the script's directory."""
    here = Metric(PATTERN).run(bench, {}, shift=1)
    there = Metric(PATTERN, elsewhere=place).run(bench, {}, shift=1)
    assert there.value == here.value
    assert not os.path.exists("model.pt")
    Path("train.py").write_text("raise SystemExit(3)")
    with pytest.raises(SideError, match="exit code 3"):
        Metric(PATTERN, elsewhere=place).run(bench, {}, shift=1)


@pytest.mark.slow
def test_a_slurm_job_prints_what_a_run_here_does(bench, monkeypatch, tmp_path):
    pytest.importorskip("submitit")
    monkeypatch.setattr(OnSlurm, "cluster", "local")  # submitit's own stand-in
    with open_elsewhere("slurm:timeout_min=5", tmp_path / "jobs") as place:
        compared(bench, place)
    assert list((tmp_path / "jobs").glob("jobs-*")) == []


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_task_of_a_ray_cluster_prints_what_a_run_here_does(bench, monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=1, include_dashboard=False, logging_level="WARNING")
    try:
        with open_elsewhere("ray", tmp_path) as place:
            assert place.at_once == 1
            compared(bench, place)
        with pytest.raises(ClusterError, match="no node of the Ray cluster has 64 CPUs"):
            open_elsewhere("ray:num_cpus=64", tmp_path).__enter__()
        for options in ("num_cpus=0", "num_cpus=few", "num_cpus=1,quickly=1"):
            with pytest.raises(ClusterError, match="--runs-on ray: "):
                open_elsewhere(f"ray:{options}", tmp_path).__enter__()
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": {"python": "2.7.18"}}, "has python .*, and 2.7.18 is needed"),
        ({"directory": "/nowhere/to/be/found"}, "no directory /nowhere/to/be/found"),
        ({"files": {"train.py": "0"}}, "has another train.py"),
        ({"files": {"gone.py": "0"}}, "has another gone.py"),
    ],
    ids=["version", "directory", "other script", "no script"],
)
def test_a_machine_that_differs_makes_no_run(bench, monkeypatch, change, message):
    task = replace(WholeTask.of(bench, spec_of({}, TrialConfig()), {}), **change)
    with pytest.raises(ClusterError, match=message):
        elsewhere._output(run_task(task))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("lsf", "expected ray or slurm"),
        ("slurm:quickly", "'quickly' is no option; write NAME=VALUE"),
        ("slurm:timeout_min=5", "there is no sbatch here"),
        ("ray", "--runs-on ray (needs Ray|found no running Ray cluster)"),
    ],
)
def test_a_place_that_there_is_not_is_refused(place, message, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(ClusterError, match=message):
        open_elsewhere(place, tmp_path / "jobs").__enter__()
    assert not (tmp_path / "jobs").exists()


class Place:
    """Machines whose runs print an accuracy, or fail."""

    def __init__(self, *, at_once=6, fails=False):
        self.at_once, self.fails, self.order = at_once, fails, []

    def start(self, task):
        self.order.append("start")

        def result():
            self.order.append("result")
            if self.fails:
                raise ClusterError("its node went away")
            return Output(text="accuracy 0.9\n", grown=[(1.0, 13)], seconds=1.0)

        return result


def judged(bench, place, *, left=1e6):
    evaluator = Evaluator(bench=bench, step_seconds=0.1, steps_per_epoch=None, time_left=lambda: left)
    return check_whole_runs(evaluator, {"bf16": True}, Metric(PATTERN, elsewhere=place))


def test_runs_of_all_seeds_begin_at_once(bench):
    place = Place()
    checks, runs = judged(bench, place)
    assert place.order == ["start"] * 6 + ["result"] * 6
    assert checks[0].state == "passed" and len(runs.baseline) == 3


def test_a_machine_that_fails_says_nothing_about_the_plan(bench):
    (check,), _ = judged(bench, Place(fails=True))
    assert (check.state, check.text) == ("unknown", "its node went away")


def test_more_machines_make_more_seeds_in_the_same_time(bench):
    _, runs = judged(bench, Place())
    assert runs.seconds(6) == 2.0
    _, runs = judged(bench, Place(at_once=12))
    assert runs.seconds(6) == 1.0


def test_jobs_that_are_refused_say_nothing_about_the_plan(bench):
    class Refusing(Place):
        def start(self, task):
            raise ClusterError("Slurm takes no job: invalid partition")

    (check,), _ = judged(bench, Refusing())
    assert check.state == "unknown" and "invalid partition" in check.text


def test_what_sbatch_refuses_is_one_line():
    class Executor:
        def submit(self, *_):
            raise RuntimeError("sbatch: error: invalid partition\nsbatch: error: Batch job submission failed")

    with pytest.raises(ClusterError, match=r"Slurm takes no job: .*Batch job submission failed"):
        OnSlurm(Executor()).start(None)


def test_a_large_file_of_the_command_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "big.h5").write_bytes(b"")
    os.truncate(tmp_path / "big.h5", 1 << 40)
    assert len(_digest(os.fspath(tmp_path / "big.h5"))) == 64


def test_a_signal_while_a_run_elsewhere_is_waited_for_ends_as_ctrl_c_does(bench):
    class Endless(Place):
        def start(self, task):
            return lambda: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        judged(bench, Endless())
