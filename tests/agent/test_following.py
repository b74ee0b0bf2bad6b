"""The rate of a run that nobody measures closely. A run under a plan is held against what the plan's proof saw."""

import pytest
import torch
from torch.utils.data import DataLoader

from hasten import patches as patching
from hasten.agent.following import EVERY, Pace, Seen
from hasten.patches import Patches
from hasten.protocol import Following, SeenInProof

AHEAD = [*([0.002] * 45), 0.5, *([0.04] * 4)]  # the host asks for 45 steps, then waits for the device to do them


@pytest.fixture
def pace(monkeypatch):
    patches = Patches()
    made = Pace(patches, Following(script="train.py", settings={}))
    made._process = -1  # says nothing at the end
    yield made
    patches.undo()


def seen(pace, seconds):
    pace._seconds.extend(seconds)
    pace._samples.extend([10] * len(seconds))


@pytest.mark.parametrize("on_device", [True, False])
def test_on_a_device_the_rate_is_that_of_whole_stretches(pace, monkeypatch, on_device):
    monkeypatch.setattr("hasten.devices.accelerator.is_in_use", lambda: on_device)
    seen(pace, AHEAD * 40)
    true = 10 * len(AHEAD) / sum(AHEAD)
    assert (pace.rate() == pytest.approx(true, rel=0.05)) is on_device


def test_a_validation_is_no_regular_stretch(pace, monkeypatch):
    monkeypatch.setattr("hasten.devices.accelerator.is_in_use", lambda: True)
    seen(pace, [*([0.1] * 95), 30.0, *([0.1] * 95)])
    assert pace.rate() == pytest.approx(100, rel=0.02)


PROOF = SeenInProof(loss_steps=12, loss=1.0, loss_spread=0.01, batch_mean=0.5, batch_spread=0.01)


@pytest.fixture
def trained(patches, capsys, monkeypatch):
    """What is said of a run with these losses."""
    monkeypatch.setattr(patching, "_warned", set())

    def train(losses):
        Seen(patches, PROOF)
        for loss in losses:
            (torch.ones(1, requires_grad=True) * loss).sum().backward()
        return capsys.readouterr().err

    return train


def test_a_run_that_trains_as_the_proof_did_says_nothing(trained):
    assert trained([2.0] * 8 + [1.03] * 4 + [1.0] * 3 * EVERY) == ""


def test_a_run_that_resumes_lower_says_nothing(trained):
    assert trained([0.1] * 20) == ""


def test_a_run_whose_loss_is_higher_says_so(trained):
    said = trained([2.0] * 8 + [1.1] * 10)
    assert (
        "the loss is 1.1 at step 12, where the plan's proof saw 1 and at most 1.04" in said and said.count("\n") == 1
    )


def test_a_loss_that_becomes_no_number_is_told_once(trained):
    said = trained([1.0] * 12 + [float("nan")] * 4 * EVERY)
    assert f"the loss of step {EVERY} is not a number" in said


def test_what_is_no_single_loss_is_let_pass(patches, trained):
    Seen(patches, PROOF)
    values = torch.ones(2, requires_grad=True)
    for _ in range(20):
        (values * 9).backward(torch.ones(2))


@pytest.mark.parametrize(("factor", "is_told"), [(1.0, False), (0.0, True), (float("nan"), True)])
def test_batches_that_become_others_are_told(patches, capsys, monkeypatch, factor, is_told):
    monkeypatch.setattr(patching, "_warned", set())
    Seen(patches, PROOF)
    rows = factor * torch.rand(4 * EVERY, 64, generator=torch.Generator().manual_seed(0))
    for _ in DataLoader(rows, 2):
        pass
    assert (f"batch {EVERY} have a mean of" in capsys.readouterr().err) == is_told
