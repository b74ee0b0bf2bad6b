"""Products inside float32 matrix multiplications in fewer bits, on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.optimizations.applicable import why_keep_precision
from hasten.optimizations.optimization import BF16_UNITS, Optimization, Proposal
from hasten.protocol import Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation


def enable(handle: Handle, value: Value) -> None:
    """Set torch's precision of float32 matrix products: "high" or "medium"."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(str(value))
    handle.patches.on_undo(lambda: torch.set_float32_matmul_precision(before))


def _propose(situation: Situation) -> list[Proposal] | str:
    reason = why_keep_precision(situation)
    if reason is not None:
        return reason
    if situation.settings.get("bf16"):
        return "bf16 does the same and more"
    facts, machine = situation.case.facts, situation.case.run.machine
    if not situation.case.on_cpu:
        return "tf32 is its name on a GPU"
    if not BF16_UNITS & {*machine.cpu_features}:
        return "this CPU has no bfloat16 units"
    if any(model.num_convolutions for model in facts.models):
        return "convolutions gain nothing by it"
    saves = 0.2 * situation.case.phase("forward", "backward")
    return [Proposal(value="medium", saves=saves, because="matrix products in full float32")]


OPTIMIZATION = Optimization(
    name="matmul_precision",
    title="products inside float32 matrix multiplications in fewer bits",
    guarantee="precision",
    answers=("full_precision",),
    propose=_propose,
    enable=enable,
    kind="word",
    words=("high", "medium"),
)
