"""cuDNN tries its algorithms on each new shape and keeps the fastest."""

from __future__ import annotations

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
    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation

MOST_SHAPES = 8  # of inputs; with more of them algorithms are tried again and again


def enable(handle: Handle, value: Value) -> None:
    """Have cuDNN try its algorithms, or not."""
    from hasten.devices import cuda

    handle.patches.on_undo(cuda.autotune(bool(value)))


def _suspect(symptoms: Symptoms) -> bool | None:
    facts = symptoms.facts
    if facts.device != "cuda" or not any(model.num_convolutions for model in facts.models):
        return None
    varying = (facts.num_input_shapes or 1) > MOST_SHAPES
    return not varying if bool(facts.cudnn_benchmark) == varying else None


def _propose(situation: Situation) -> list[Proposal] | NotProposed | str:
    if situation.case.on_cpu:
        return "cuDNN is of NVIDIA GPUs"
    if situation.case.facts.cudnn_benchmark:
        return "it is on already"
    likely = 0.03 * situation.case.phase("forward", "backward")
    return from_finding("cudnn_autotune", otherwise="input shapes vary", prior=lambda _: likely)(situation)


OPTIMIZATION = Optimization(
    name="cudnn_benchmark",
    title="cuDNN tries its algorithms on each new shape and keeps the fastest",
    guarantee="rounding",
    answers=("cudnn_autotune",),
    propose=_propose,
    enable=enable,
    # cuDNN spends the first steps of a shape on choosing an algorithm.
    experiments=(Experiment(cause="cudnn_autotune", suspect=_suspect, settle=5, usual=0.1),),
    problems=(
        Problem(
            kind="cudnn_autotune",
            title="cuDNN autotuning does not match the input shapes",
            remedy="Set torch.backends.cudnn.benchmark: True for fixed input shapes, False for varying ones.",
        ),
    ),
)
