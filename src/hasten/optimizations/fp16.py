"""The model's forward under float16 autocast, with loss scaling: for GPUs whose tensor cores take float16 only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.errors import NotApplicableError
from hasten.optimizations.applicable import why_keep_precision
from hasten.optimizations.optimization import Optimization, Proposal
from hasten.protocol import Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation


def enable(handle: Handle, _value: Value) -> None:
    """Run the roots' forward under float16 autocast, with the loss scaled so that small gradients survive."""
    import torch

    from hasten.agent.mixed_precision import scale_losses, under_autocast
    from hasten.devices import cuda

    if not cuda.is_available():
        raise NotApplicableError("float16 training needs a CUDA device")
    under_autocast(handle, torch.float16)
    scale_losses(handle)


def _propose(situation: Situation) -> list[Proposal] | str:
    from hasten.diagnosis.check_device import FORMATS, capabilities

    reason = why_keep_precision(situation)
    if reason is not None:
        return reason
    if situation.case.on_cpu:
        return "float16 training needs a CUDA device"
    weakest = min(capabilities(situation.case.run.machine), default=FORMATS["bf16"])
    if weakest >= FORMATS["bf16"]:
        return "bfloat16 needs no loss scaling"
    if weakest < FORMATS["fp16"]:
        return "this GPU has no float16 units"
    saves = 0.3 * situation.case.phase("forward", "backward")
    return [Proposal(value=True, saves=saves, because="this GPU's tensor cores take float16 only")]


OPTIMIZATION = Optimization(
    name="fp16",
    title="the model's forward under float16 autocast, with loss scaling",
    guarantee="precision",
    answers=("full_precision",),
    propose=_propose,
    enable=enable,
    excludes=("bf16",),
)
