"""How DistributedDataParallel exchanges gradients: in fewer bytes, without copies, without a search of the graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hasten.optimizations.optimization import (
    WORTH,
    Experiment,
    NotProposed,
    Optimization,
    Problem,
    Proposal,
    Propose,
    Symptoms,
    from_finding,
)
from hasten.protocol import Value

if TYPE_CHECKING:
    from torch import nn

    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation

Function = Callable[..., object]
NO_DDP = "no model is in DistributedDataParallel"
LARGE = 100 << 20  # bytes of gradients from which copying them, or the number of buckets, may show


def enable_gradients(handle: Handle, value: Value) -> None:
    """Exchange gradients in half precision, unless the script has a communication hook of its own."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    hook = default_hooks.bf16_compress_hook if value == "bf16" else default_hooks.fp16_compress_hook
    own: list[object] = []  # models for which the script registered one

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def register_comm_hook(ddp: object, *arguments: object, **settings: object) -> object:
            own.append(ddp)
            return original(ddp, *arguments, **settings)

        return register_comm_hook

    def compress(root: nn.Module) -> None:
        found = [module for module in root.modules() if isinstance(module, DistributedDataParallel)]
        if not found:
            handle.refuse(NO_DDP)
        for ddp in found:
            if any(ddp is one for one in own):
                handle.refuse("the script has a communication hook of its own")
            else:
                ddp.register_comm_hook(None, hook)

    # Before the first forward, and no earlier: the script may register its own until then.
    handle.on_model(compress)
    handle.wrap(DistributedDataParallel, "register_comm_hook", make)


def _constructing(argument: str, as_argument: Callable[[Value], Any] = lambda value: value) -> Callable[..., None]:
    def enable(handle: Handle, value: Value) -> None:
        from torch.nn.parallel import DistributedDataParallel

        if argument not in inspect.signature(DistributedDataParallel).parameters:
            handle.refuse(f"this PyTorch's DistributedDataParallel has no {argument}")
            return

        def make(original: Function) -> Function:
            signature = inspect.signature(original)

            @functools.wraps(original)
            def __init__(*arguments: object, **settings: object) -> object:
                given = signature.bind(*arguments, **settings)  # the script may pass it by position
                given.arguments[argument] = as_argument(value)
                return original(*given.args, **given.kwargs)

            return __init__

        handle.wrap(DistributedDataParallel, "__init__", make)

    return enable


def enable_bucket_view(handle: Handle, value: Value) -> None:
    """Let gradients be views of the buckets that are exchanged."""
    _constructing("gradient_as_bucket_view")(handle, value)


def enable_bucket_mb(handle: Handle, value: Value) -> None:
    """Exchange gradients in buckets of so many MiB."""
    _constructing("bucket_cap_mb")(handle, value)


def enable_batched_copy(handle: Handle, value: Value) -> None:
    """Copy a bucket's gradients with one operator."""
    _constructing("batched_grad_copy")(handle, value)


def enable_static_graph(handle: Handle, value: Value) -> None:
    """Take the graph of the first step for that of all steps."""
    _constructing("static_graph")(handle, value)


def enable_no_search(handle: Handle, value: Value) -> None:
    """Do not look for parameters that a backward will not reach."""
    _constructing("find_unused_parameters", lambda _value: False)(handle, value)


def _transfer(situation: Situation) -> float:
    ranks = situation.case.run.ranks
    return 0.0 if ranks is None else ranks.transfer - sum(e.seconds for e in ranks.exchanges)


def _propose_gradients(situation: Situation) -> list[Proposal] | NotProposed | str:
    ddps = situation.case.facts.ddps
    if not ddps:
        return NO_DDP
    if any(ddp.hook for ddp in ddps):
        return "the script has a communication hook of its own"
    saves = 0.5 * _transfer(situation)
    if saves < WORTH * situation.case.step:
        return NotProposed(reason="exchanging gradients takes too little of the step", state="does not help")
    return [Proposal(value="bf16", saves=saves, because="half the bytes are exchanged")]


def _if_large(value: Value, saves: float) -> Propose:
    """What may show with many gradients only; `saves` is a share of the step."""

    def propose(situation: Situation) -> list[Proposal] | NotProposed | str:
        ddps = situation.case.facts.ddps
        if not ddps:
            return NO_DDP
        if all(ddp.num_bytes < LARGE for ddp in ddps):
            return "the gradients are few"
        return [Proposal(value=value, saves=saves * situation.case.step, because="the gradients are many")]

    return propose


def _searches(symptoms: Symptoms) -> bool | None:
    return True if any(ddp.find_unused and not ddp.unused_bytes for ddp in symptoms.facts.ddps) else None


DDP_GRADIENTS = Optimization(
    name="ddp_gradients",
    title="DistributedDataParallel exchanges gradients in half precision",
    guarantee="precision",
    answers=("exposed_communication",),
    propose=_propose_gradients,
    enable=enable_gradients,
    kind="word",
    words=("bf16", "fp16"),
)
DDP_BUCKET_VIEW = Optimization(
    name="ddp_bucket_view",
    title="gradients are views of the buckets that DistributedDataParallel exchanges, not copied into them",
    guarantee="identical",
    answers=("exposed_communication",),
    propose=_if_large(True, 0.05),
    enable=enable_bucket_view,
)
DDP_BATCHED_COPY = Optimization(
    name="ddp_batched_copy",
    title="DistributedDataParallel copies all gradients of a bucket at once (PyTorch 2.14)",
    guarantee="rounding",
    answers=("exposed_communication",),
    propose=_if_large(True, 0.03),
    enable=enable_batched_copy,
)
DDP_BUCKET_MB = Optimization(
    name="ddp_bucket_mb",
    title="DistributedDataParallel exchanges gradients in buckets of so many MiB",
    guarantee="rounding",
    answers=("exposed_communication",),
    propose=_if_large(100, 0.05),
    enable=enable_bucket_mb,
    kind="number",
)
DDP_NO_SEARCH = Optimization(
    name="ddp_no_search",
    title="DistributedDataParallel does not look for unused parameters; a step that leaves one unused fails",
    guarantee="rounding",
    answers=("unused_parameters",),
    propose=from_finding("unused_parameters", otherwise="it does not look for any, or some are unused"),
    enable=enable_no_search,
    only_by_user=True,
    experiments=(Experiment(cause="unused_parameters", suspect=_searches, toggled=False, usual=0.03),),
    problems=(
        Problem(
            kind="unused_parameters",
            title="DDP looks for unused parameters, and there are none",
            remedy="Leave find_unused_parameters out, if no branch of the model can be skipped.",
        ),
    ),
)
DDP_STATIC_GRAPH = Optimization(
    name="ddp_static_graph",
    title="DistributedDataParallel takes the graph of the first step for that of all steps",
    guarantee="rounding",
    answers=("unused_parameters",),
    propose=lambda _situation: "it holds only if the model does the same in every step",
    enable=enable_static_graph,
    only_by_user=True,
)
