"""Numbers below 1e-38 count as zero: on some CPUs each of them costs a hundred cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hasten.errors import NotApplicableError
from hasten.optimizations.optimization import Experiment, Optimization, Problem, Symptoms, from_finding
from hasten.protocol import GRADIENT_PHASES, Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.case import Case
    from hasten.diagnosis.situation import Situation


def enable(handle: Handle, _value: Value) -> None:
    """Have the CPU flush them, whatever the script says."""
    import torch

    flush = torch.set_flush_denormal
    if float(torch.tensor(1e-39) * 1.0) == 0.0:
        raise NotApplicableError("the script flushes them already")
    if not flush(True):
        raise NotApplicableError("this CPU cannot flush denormal numbers")

    def set_flush_denormal(mode: bool) -> bool:
        return flush(True)

    handle.patches.set(torch, "set_flush_denormal", set_flush_denormal)
    handle.patches.on_undo(lambda: flush(False))


def _suspect(symptoms: Symptoms) -> bool | None:
    computes = symptoms.shares.of(*GRADIENT_PHASES) >= 0.2
    return True if symptoms.on_cpu and computes else None


def _prior(situation: Situation) -> float | None:
    if not situation.case.on_cpu:
        return None
    return min(0.1, situation.case.facts.subnormal_share or 0.0) * situation.case.phase("forward", "backward")


def _evidence(case: Case) -> Sequence[str]:
    from hasten import format

    share = case.facts.subnormal_share
    text = "of the values in parameters, gradients and states are subnormal"
    return [f"{format.share(share)} {text}"] if share else []


OPTIMIZATION = Optimization(
    name="flush_denormal",
    title="numbers below 1e-38 count as zero",
    guarantee="rounding",
    answers=("denormals",),
    propose=from_finding("denormals", otherwise="no denormal numbers slow this CPU down", prior=_prior),
    enable=enable,
    # Subnormal values stay so until they are computed again.
    experiments=(Experiment(cause="denormals", suspect=_suspect, settle=2, usual=0.03),),
    problems=(
        Problem(
            kind="denormals",
            title="Subnormal numbers",
            remedy="Call torch.set_flush_denormal(True) at the start.",
            evidence=_evidence,
        ),
    ),
)
