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


@pytest.mark.filterwarnings("error")  # torch's that the schedule goes before the optimizer
def test_one_cycle_rises_to_the_scripts_rate_and_falls(put_on):
    put_on("onecycle", 20)
    optimizer = torch.optim.SGD(weight(), lr=0.1, momentum=0.9)
    rates = [stepped(optimizer, 1) for _ in range(25)]
    assert max(rates) == pytest.approx(0.1, rel=0.05)
    assert rates[0] < 0.02 and rates[-1] < 0.001


@pytest.mark.filterwarnings("error")  # torch's that the schedule goes before the optimizer
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


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_the_scripts_optimizer_is_an_adamw_from_its_first_moment(put_on, make):
    put_on("adamw", 0.001)
    optimizer = make(weight(), lr=0.1)
    assert type(optimizer) is torch.optim.AdamW and optimizer.defaults["lr"] == 0.001
    assert stepped(optimizer, 3) == 0.001
    torch.optim.AdamW(weight()).load_state_dict(optimizer.state_dict())


def test_rates_of_groups_keep_their_ratio(put_on):
    put_on("adamw", 0.001)
    groups = [{"params": weight(), "lr": 0.01}, {"params": weight()}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.05)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.0001, 0.001])
    assert optimizer.defaults["weight_decay"] == 0.05


def test_an_optimizer_of_the_scripts_own_stays_what_it_is(put_on):
    class Own(torch.optim.SGD):
        pass

    put_on("adamw", 0.001)
    assert type(Own(weight(), lr=0.1)) is Own
    assert type(torch.optim.AdamW(weight(), lr=0.1)) is torch.optim.AdamW
