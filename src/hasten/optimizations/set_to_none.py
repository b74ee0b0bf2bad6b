"""Gradients are dropped between steps, not filled with zeros."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from hasten.optimizations.optimization import (
    Experiment,
    NotProposed,
    Optimization,
    Problem,
    Proposal,
    Symptoms,
    from_finding,
)
from hasten.protocol import Value

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation

Function = Callable[..., object]


def enable(handle: Handle, _value: Value) -> None:
    """Have `zero_grad` drop gradients.

    A parameter that a step does not use has no gradient then, and an optimizer leaves it alone; with a gradient of zeros
    its momentum and its weight decay continue. So it is given zeros before the optimizer's step.
    """
    import torch
    from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
    from torch.utils.weak import WeakTensorKeyDictionary

    had = WeakTensorKeyDictionary()  # parameters that the script would have given zeros
    asked: list[bool] = []

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def zero_grad(self: object, set_to_none: bool = True) -> object:
            if not set_to_none and not asked:
                asked.append(True)
                handle.patches.on_undo(register_optimizer_step_pre_hook(as_asked).remove)
            return original(self, True)

        return zero_grad

    def as_asked(optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    had[parameter] = None
                elif parameter in had:
                    parameter.grad = torch.zeros_like(parameter)

    handle.patches.wrap(Optimizer, "zero_grad", make)
    handle.patches.wrap(torch.nn.Module, "zero_grad", make)


def _suspect(symptoms: Symptoms) -> bool | None:
    return True if symptoms.facts.zero_grad_in_place else None


def _propose(situation: Situation) -> list[Proposal] | NotProposed | str:
    zeroed = situation.case.facts.zero_grad_in_place
    likely = 0.5 * situation.case.phase("zero_grad") if zeroed else None
    otherwise = "filling them with zeros takes next to nothing here" if zeroed else "gradients are dropped already"
    return from_finding("zero_grad_in_place", otherwise=otherwise, prior=lambda _: likely)(situation)


OPTIMIZATION = Optimization(
    name="set_to_none",
    title="gradients are dropped between steps, not filled with zeros",
    guarantee="identical",
    answers=("zero_grad_in_place",),
    propose=_propose,
    enable=enable,
    on_any_machine=True,
    experiments=(Experiment(cause="zero_grad_in_place", suspect=_suspect, settle=2),),
    problems=(
        Problem(
            kind="zero_grad_in_place",
            title="Gradients are zeroed in place",
            remedy="Call zero_grad() without set_to_none=False.",
            phase="zero_grad",
            where=lambda case: case.facts.zero_grad_where,
        ),
    ),
)
