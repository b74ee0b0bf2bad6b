"""Products of float32 in TF32, on NVIDIA GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.errors import NotApplicableError
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
    from torch import nn

    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation

NEEDS = "it needs an NVIDIA GPU of compute capability 8.0 or later"


def enable(handle: Handle, _value: Value) -> None:
    """Allow products of float32 on NVIDIA's tensor cores, with 10 bits of mantissa."""
    from hasten.devices import cuda

    if not cuda.is_available():
        raise NotApplicableError(NEEDS)
    is_on: list[bool] = []

    def allow(_module: nn.Module) -> None:
        if is_on:
            return
        if not cuda.has_tf32():
            raise NotApplicableError(NEEDS)
        if cuda.allows_tf32():
            raise NotApplicableError("the script allows it itself")
        is_on.append(True)
        handle.patches.on_undo(cuda.allow_tf32())

    handle.on_model(allow)  # not before: the script chooses its device after `import torch`


def _suspect(symptoms: Symptoms) -> bool | None:
    off = not symptoms.on_cpu and symptoms.facts.tf32 is False
    return True if off and symptoms.computes and symptoms.in_float32 else None


def _propose(situation: Situation) -> list[Proposal] | NotProposed | str:
    if situation.case.on_cpu:
        return "it is of NVIDIA GPUs"
    if situation.case.facts.tf32:
        return "it is on already"
    likely = 0.15 * situation.case.arithmetic
    return from_finding("tf32", otherwise="computing is not what takes the time", prior=lambda _: likely)(situation)


OPTIMIZATION = Optimization(
    name="tf32",
    title="products of float32 in TF32, on NVIDIA GPUs",
    guarantee="precision",
    answers=("full_precision",),
    propose=_propose,
    enable=enable,
    experiments=(Experiment(cause="tf32", suspect=_suspect, usual=0.3),),
    problems=(
        Problem(
            kind="full_precision",
            cause="tf32",
            title="TF32 is off",
            remedy='Call torch.set_float32_matmul_precision("high").',
        ),
    ),
)
