"""One kernel updates all parameters, instead of several for each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from hasten.errors import NotApplicableError
from hasten.optimizations.optimization import WORTH, Experiment, Optimization, Problem, Symptoms, from_finding
from hasten.protocol import Value

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer
    from torch.utils.hooks import RemovableHandle

    from hasten.agent.handle import Handle
    from hasten.diagnosis.case import Case
    from hasten.diagnosis.situation import Situation

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def enable(handle: Handle, _value: Value) -> None:
    """Have optimizers step by their fused implementation; what they save says what the script said."""

    def fuse(optimizer: Optimizer) -> None:
        if type(optimizer).__name__ not in FUSED or not type(optimizer).__module__.startswith("torch.optim"):
            raise NotApplicableError(f"{type(optimizer).__name__} has no fused implementation")
        for group in optimizer.param_groups:
            if group.get("fused"):
                raise NotApplicableError("the optimizer is fused already")
            if group.get("differentiable") or any(not p.is_floating_point() for p in group["params"]):
                raise NotApplicableError("the fused implementation cannot do what is asked of the optimizer")
            gradients = [p.grad for p in group["params"]]
            if any(gradient is not None and gradient.is_sparse for gradient in gradients):
                raise NotApplicableError("the fused implementation takes no sparse gradients")
            if group.get("momentum") and any(gradient is None for gradient in gradients):
                # torch's kernel takes momenta of all parameters or of none, and these may get theirs later.
                raise NotApplicableError("some parameters have no gradient yet")
        before = [(group.get("fused"), group.get("foreach")) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
        for parameter, state in optimizer.state.items():  # of a checkpoint: the kernel counts where the parameter is
            if hasattr(state.get("step"), "to"):
                state["step"] = state["step"].to(parameter.device)
        hook = optimizer.register_state_dict_post_hook(functools.partial(_as_written, before))
        handle.patches.on_undo(functools.partial(_undo, ref(optimizer), hook, before))

    handle.on_optimizer(fuse)


def _undo(held: ref[Optimizer], hook: RemovableHandle, before: Sequence[tuple[object, object]]) -> None:
    hook.remove()
    optimizer = held()  # which a script that makes many of them has dropped
    if optimizer is None:
        return
    for group, (fused, foreach) in zip(optimizer.param_groups, before):
        group["fused"], group["foreach"] = fused, foreach
    for state in optimizer.state.values():
        if hasattr(state.get("step"), "cpu") and not any(fused for fused, _ in before):
            state["step"] = state["step"].cpu()


def _as_written(before: Sequence[tuple[object, object]], _optimizer: Optimizer, state: dict[str, Any]) -> None:
    for group, (fused, foreach) in zip(state["param_groups"], before):
        group["fused"], group["foreach"] = fused, foreach


def _suspect(symptoms: Symptoms) -> bool | None:
    suits = any(o.name in FUSED and not o.fused for o in symptoms.facts.optimizers)
    return True if suits and symptoms.shares.of("optimizer") >= WORTH else None


def _prior(situation: Situation) -> float | None:
    suits = any(o.name in FUSED and not o.fused for o in situation.case.facts.optimizers)
    return 0.5 * situation.case.phase("optimizer") if suits else None


def _evidence(case: Case) -> Sequence[str]:
    from hasten import format

    tensors = sum(optimizer.num_tensors for optimizer in case.facts.optimizers)
    return [f"the optimizer updates {tensors} tensors in {format.seconds(case.phase('optimizer'))}"]


OPTIMIZATION = Optimization(
    name="fused_optimizer",
    title="one kernel updates all parameters",
    guarantee="rounding",
    answers=("unfused_optimizer",),
    propose=from_finding(
        "unfused_optimizer", otherwise="the optimizer takes no time worth saving, or is fused", prior=_prior
    ),
    enable=enable,
    experiments=(Experiment(cause="unfused_optimizer", suspect=_suspect, acts_in="optimizer", usual=0.08),),
    problems=(
        Problem(
            kind="unfused_optimizer",
            title="Unfused optimizer",
            remedy="Pass fused=True to the optimizer.",
            phase="optimizer",
            evidence=_evidence,
        ),
    ),
)
