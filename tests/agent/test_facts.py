"""What is read and measured in the training process when the window closes."""

import functools

import torch

from hasten.agent.facts import _call_overhead


def test_the_overhead_of_a_call_is_measured_behind_the_hooks_of_backward(monkeypatch):
    seen = []

    @functools.wraps(torch.autograd.grad)
    def hooked(*arguments, **settings):
        seen.append(arguments)

    monkeypatch.setattr(torch.autograd, "grad", hooked)
    with torch.inference_mode():
        assert 1e-7 < _call_overhead() < 1e-2
    assert seen == []
