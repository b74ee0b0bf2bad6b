"""The model's forward under bfloat16 autocast."""

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
    from collections.abc import Sequence

    from hasten.agent.handle import Handle
    from hasten.diagnosis.case import Case
    from hasten.diagnosis.situation import Situation


def enable(handle: Handle, _value: Value) -> None:
    """Run the roots' forward under bfloat16 autocast, and hand out float32.

    Around each forward alone: where autocast is on from one step to the next, the cached casts of the weights are
    never renewed, and training stands still without a word.
    """
    import torch

    from hasten.agent.mixed_precision import under_autocast

    under_autocast(handle, torch.bfloat16)


def _suspect(symptoms: Symptoms) -> bool | None:
    has_units = not symptoms.on_cpu or BF16_UNITS & {*symptoms.machine.cpu_features}
    return True if symptoms.computes and symptoms.in_float32 and has_units else None


def _prior(situation: Situation) -> float:
    """A third of what is computed: between 1.3x and 2.5x on the networks of docs/case-studies.md."""
    return 0.35 * situation.case.arithmetic


def _propose(situation: Situation) -> list[Proposal] | NotProposed | str:
    reason = why_keep_precision(situation)
    if reason is not None:
        return reason
    if situation.case.on_cpu and not BF16_UNITS & {*situation.case.run.machine.cpu_features}:
        return "this CPU has no bfloat16 units"
    return from_finding("full_precision", otherwise="computing is not what takes the time", prior=_prior)(situation)


def _evidence(case: Case) -> Sequence[str]:
    units = [feature for feature in case.run.machine.cpu_features if "bf16" in feature] if case.on_cpu else []
    return [f"the CPU has {', '.join(units)}"] if units else []


def _layout(situation: Situation, _value: Value) -> dict[str, Value]:
    """Convolutions in bfloat16 are written for channels-last, and may be slower in the other layout."""
    models = situation.case.facts.models
    return {"channels_last": True} if any(m.num_convolutions and not m.channels_last for m in models) else {}


OPTIMIZATION = Optimization(
    name="bf16",
    title="the model's forward under bfloat16 autocast",
    guarantee="precision",
    answers=("full_precision",),
    propose=_propose,
    enable=enable,
    helped_by=_layout,
    excludes=("fp16",),
    experiments=(Experiment(cause="full_precision", suspect=_suspect, usual=0.35, saves_of=GRADIENT_PHASES),),
    problems=(
        Problem(
            kind="full_precision",
            title="Training in float32",
            remedy="Wrap the forward pass in torch.autocast(device, dtype=torch.bfloat16).",
            evidence=_evidence,
        ),
    ),
)
