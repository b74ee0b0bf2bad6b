"""What float64 costs: a measurement has float32 in its place, and a run never has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.optimizations.optimization import Experiment, Problem, Symptoms
from hasten.protocol import GRADIENT_PHASES, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.agent.handle import Function, Handle
    from hasten.diagnosis.case import Case

MAKERS = ("tensor", "as_tensor", "asarray", "from_numpy")  # of a tensor with the precision of its data


def use_float32(handle: Handle, _value: Value) -> None:
    """Have every name of float64 stand for float32, and tensors of float64 data made in it."""
    import torch

    float64 = torch.float64
    for name, instead in (("float64", torch.float32), ("double", torch.float32), ("DoubleTensor", torch.FloatTensor)):
        handle.patches.set(torch, name, instead)
    for owner in (torch.Tensor, torch.nn.Module):
        handle.patches.set(owner, "double", owner.float)

    def in_float32(make: Function) -> Function:
        def made(*arguments: object, **settings: object) -> object:
            tensor = make(*arguments, **settings)
            return tensor.float() if isinstance(tensor, torch.Tensor) and tensor.dtype == float64 else tensor

        return made

    for name in MAKERS:
        handle.wrap(torch, name, in_float32)


def _suspect(symptoms: Symptoms) -> bool | None:
    in_float64 = any("float64" in model.dtypes for model in symptoms.facts.models)
    return True if in_float64 and symptoms.shares.of(*GRADIENT_PHASES) >= 0.1 else None


def _evidence(case: Case) -> Sequence[str]:
    models = [model.name for model in case.facts.models if "float64" in model.dtypes]
    return [
        f"{name} has float64 weights; float32 needs half the bytes and half the SIMD instructions"
        for name in models[:1]
    ]


EXPERIMENT = Experiment(
    cause="double_precision",
    suspect=_suspect,
    title="float32",
    enable=use_float32,
    toggled=False,
    usual=0.35,
    saves_of=GRADIENT_PHASES,
)
PROBLEM = Problem(
    kind="double_precision",
    title="Training in float64",
    remedy="Use float32 unless the method needs double precision: .float() instead of .double(), and no float64 input.",
    evidence=_evidence,
)
