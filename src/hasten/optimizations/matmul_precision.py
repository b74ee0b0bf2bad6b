"""Products inside float32 matrix multiplications in fewer bits, on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.optimizations.applicable import why_keep_precision
from hasten.optimizations.optimization import (
    BF16_UNITS,
    Experiment,
    NotProposed,
    Optimization,
    Problem,
    Proposal,
    Symptoms,
    from_finding,
)
from hasten.protocol import GRADIENT_PHASES, Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation
    from hasten.records import Machine


def enable(handle: Handle, value: Value) -> None:
    """Set torch's precision of float32 matrix products: "high" or "medium"."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(str(value))
    handle.patches.on_undo(lambda: torch.set_float32_matmul_precision(before))


def _has_units(machine: Machine) -> bool:
    return bool(BF16_UNITS & {*machine.cpu_features})


def _suspect(symptoms: Symptoms) -> str | None:
    plain = symptoms.on_cpu and symptoms.in_float32 and _has_units(symptoms.machine)
    convolves = any(model.num_convolutions for model in symptoms.facts.models)
    return "medium" if plain and symptoms.computes and not convolves else None


def _propose(situation: Situation) -> list[Proposal] | NotProposed | str:
    reason = why_keep_precision(situation)
    if reason is not None:
        return reason
    if situation.settings.get("bf16"):
        return "bf16 does the same and more"
    facts, case = situation.case.facts, situation.case
    if not case.on_cpu:
        return "tf32 is its name on a GPU"
    if not _has_units(case.run.machine):
        return "this CPU has no bfloat16 units"
    if any(model.num_convolutions for model in facts.models):
        return "convolutions gain nothing by it"
    likely = 0.2 * case.phase("forward", "backward")
    otherwise = "computing is not what takes the time"
    return from_finding("matmul_precision", value="medium", otherwise=otherwise, prior=lambda _: likely)(situation)


OPTIMIZATION = Optimization(
    name="matmul_precision",
    title="products inside float32 matrix multiplications in fewer bits",
    guarantee="precision",
    answers=("full_precision",),
    propose=_propose,
    enable=enable,
    kind="word",
    words=("high", "medium"),
    experiments=(Experiment(cause="matmul_precision", suspect=_suspect, usual=0.2, saves_of=GRADIENT_PHASES),),
    problems=(
        Problem(
            kind="full_precision",
            cause="matmul_precision",
            title="Matrix products in full float32",
            remedy='Call torch.set_float32_matmul_precision("medium").',
        ),
    ),
)
