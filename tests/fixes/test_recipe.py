"""Other training dynamics: the batch, the rate that goes with it, and schedules."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def stepped(optimizer, number):
    for _ in range(number):
        optimizer.param_groups[0]["params"][0].grad = torch.zeros(1)
        optimizer.step()
    return optimizer.param_groups[0]["lr"]


def weight():
    return [nn.Parameter(torch.zeros(1))]


@pytest.mark.parametrize("make, factor", [(torch.optim.SGD, 4.0), (torch.optim.AdamW, 2.0)])
def test_a_larger_batch_takes_its_learning_rate_along(put_on, make, factor):
    put_on("batch_size", 32)
    dataset = TensorDataset(torch.arange(64))
    assert DataLoader(dataset, 8, shuffle=True).batch_size == 32
    assert DataLoader(dataset, 8).batch_size == 8, "validation keeps its own"
    optimizer = make(weight(), lr=0.01)
    assert stepped(optimizer, 50) < 0.01 * factor
    assert stepped(optimizer, 150) == pytest.approx(0.01 * factor)


def test_without_a_training_loader_there_is_no_batch_to_enlarge(put_on):
    states = put_on("batch_size", 32)
    assert stepped(torch.optim.SGD(weight(), lr=0.01), 3) == 0.01
    assert "no shuffled DataLoader" in states["batch_size"]


def test_one_cycle_rises_to_the_scripts_rate_and_falls(put_on):
    put_on("onecycle", 20)
    optimizer = torch.optim.SGD(weight(), lr=0.1, momentum=0.9)
    rates = [stepped(optimizer, 1) for _ in range(25)]
    assert max(rates) == pytest.approx(0.1, rel=0.05)
    assert rates[0] < 0.02 and rates[-1] < 0.001


def test_a_cyclic_rate_swings(put_on):
    put_on("cyclic", 5)
    optimizer = torch.optim.SGD(weight(), lr=0.1, momentum=0.9)
    rates = [stepped(optimizer, 1) for _ in range(20)]
    assert max(rates) == pytest.approx(0.1) and min(rates) == pytest.approx(0.01)


def test_a_script_with_a_schedule_keeps_it(put_on):
    states = put_on("onecycle", 20)
    optimizer = torch.optim.SGD(weight(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 5)
    stepped(optimizer, 2)
    assert "schedule of its own" in states["onecycle"]


def test_adam_becomes_adamw(put_on):
    if put_on("adamw")["adamw"] != "on":
        pytest.skip("this torch's Adam cannot decouple its weight decay")
    assert torch.optim.Adam(weight(), weight_decay=0.1).param_groups[0]["decoupled_weight_decay"] is True
