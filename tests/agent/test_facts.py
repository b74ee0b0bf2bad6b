"""What is read and measured in the training process when the window closes."""

import functools

import torch
from torch.utils.flop_counter import flop_registry

from hasten.agent.facts import OperatorCount, _call_overhead


def test_the_overhead_of_a_call_is_measured_behind_the_hooks_of_backward(monkeypatch):
    seen = []

    @functools.wraps(torch.autograd.grad)
    def hooked(*arguments, **settings):
        seen.append(arguments)

    monkeypatch.setattr(torch.autograd, "grad", hooked)
    with torch.inference_mode():
        assert 1e-7 < _call_overhead() < 1e-2
    assert seen == []


def test_a_formula_of_operations_that_fails_costs_the_script_nothing(monkeypatch):
    def fails(*_, **__):
        raise AssertionError("unequal heads")

    monkeypatch.setitem(flop_registry, torch.ops.aten.mm, fails)
    with OperatorCount(lambda: "forward") as count:
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).sum() == 8.0
    assert count.num_operators and not count.num_flops
