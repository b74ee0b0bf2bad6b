"""What the live line says, and that trackers get the same."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.agent.patches import Patches
from hasten.measurement.inside import live
from hasten.measurement.inside.live import Live, told


@pytest.fixture
def patches(monkeypatch):
    monkeypatch.setattr(live, "EVERY", 0.0)
    monkeypatch.setattr(live, "TRACKED_EVERY", 0.0)
    monkeypatch.setattr("hasten.agent.patches._warned", set())
    put = Patches()
    yield put
    put.undo()


def train(epochs=2):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()


def test_a_line_says_what_can_be_told():
    figures = {
        "epoch": 3.0,
        "step_seconds": 0.1,
        "samples_per_second": 412.4,
        "data_wait": 0.04,
        "times_baseline": 1.9,
    }
    assert told({**figures, "memory_bytes": 1.2 * 2**30}) == (
        "epoch 3 | 412.4 samples/s (1.90x) | data wait 4 % | memory 1.2 GiB"
    )
    assert told({"epoch": 1.0, "step_seconds": 0.0123}) == "epoch 1 | 12.3 ms a step"


def test_epochs_and_samples_are_counted(patches):
    running = Live(patches, baseline=100.0)
    seen = []
    running._trackers.track = lambda figures, step: seen.append((step, figures))
    train(epochs=2)
    assert [step for step, _ in seen] == list(range(1, 9))
    assert seen[-1][1]["epoch"] == 2.0 and seen[-1][1]["samples_per_second"] > 0
    assert 0 <= seen[-1][1]["data_wait"] <= 1


def test_validation_is_no_epoch(patches):
    running = Live(patches, baseline=None)
    with torch.no_grad():
        for _ in DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8):
            pass
    assert running.meter.epoch == 1


def test_tensorboard_gets_the_figures_where_the_script_writes_to_it(patches, tmp_path, monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard.writer")
    added = []

    class SummaryWriter:
        file_writer = object()

        def add_scalar(self, name, value, step):
            added.append((name, step))

    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", module)
    running = Live(patches, baseline=None)
    running._trackers.track({"epoch": 1.0}, step=1)
    assert not added, "the script has no writer"
    writer = SummaryWriter()
    train(epochs=1)
    assert ("hasten/samples_per_second", 3) in added
    writer.file_writer = None
    added.clear()
    running._trackers.track({"epoch": 1.0}, step=5)
    assert not added, "a closed writer is left alone"


def test_wandb_and_mlflow_get_them_in_a_run_of_the_scripts(patches, monkeypatch):
    logged = []
    wandb = types.SimpleNamespace(run=None, log=lambda figures, commit: logged.append(("wandb", commit, *figures)))
    mlflow = types.SimpleNamespace(
        active_run=lambda: object(), log_metrics=lambda figures, step: logged.append(("mlflow", step, *figures))
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    running = Live(patches, baseline=None)
    train(epochs=1)
    assert {name for name, *_ in logged} == {"mlflow"} and "hasten.epoch" in logged[0]
    wandb.run = object()
    running._trackers.track({"epoch": 2.0}, step=5)
    assert any(name == "wandb" and rest[0] is False and "hasten/epoch" in rest for name, *rest in logged)


def test_a_tracker_that_fails_is_told_once_and_left(patches, monkeypatch, capsys):
    def log(figures, commit):
        raise RuntimeError("offline")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=object(), log=log))
    Live(patches, baseline=None)
    train()
    assert capsys.readouterr().err.count("W&B does not take hasten's figures") == 1
