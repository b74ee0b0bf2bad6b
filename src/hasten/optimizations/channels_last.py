"""Weights of convolutions, and their inputs, channel by channel within each pixel."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from hasten.errors import NotApplicableError
from hasten.optimizations.optimization import Experiment, Optimization, Problem, Symptoms, from_finding
from hasten.protocol import GRADIENT_PHASES, Value

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim.optimizer import Optimizer

    from hasten.agent.handle import Handle
    from hasten.agent.root import Forward
    from hasten.diagnosis.situation import Situation


def enable(handle: Handle, _value: Value) -> None:
    """Lay out the weights, the optimizer's states, and what the model is given; what it returns is laid out as before."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.weak import WeakTensorKeyDictionary

    from hasten.agent.tree import with_tensors

    converted = WeakTensorKeyDictionary()

    def convert(module: nn.Module) -> None:
        weights = [p for p in module.parameters() if p.dim() == 4]
        if not weights and converted:  # a second model, beside one that was laid out
            return
        if not weights:
            raise NotApplicableError("the model has no convolution over images")
        if isinstance(module, DistributedDataParallel):
            raise NotApplicableError("the model is wrapped for distributed training already")
        changed = [w for w in weights if not w.is_contiguous(memory_format=torch.channels_last)]
        converted.update((weight, None) for weight in changed)
        _lay_out(changed, torch.channels_last)

    def convert_state(optimizer: Optimizer) -> None:
        # A checkpoint's, or an earlier step's: kernels are slow where a parameter and its state differ in layout.
        _lay_out_state(optimizer, converted, torch.channels_last)

    def channels_last(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dim() == 4:
            return value.contiguous(memory_format=torch.channels_last)
        return value

    def around(
        _module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        arguments = tuple(channels_last(argument) for argument in arguments)
        output = forward(*arguments, **{name: channels_last(value) for name, value in settings.items()})
        return with_tensors(output, _contiguous)  # the script may look at it by `view`

    handle.on_model(convert)
    handle.on_optimizer(convert_state)
    handle.around_forward(around)

    def undo() -> None:
        _lay_out(list(converted), torch.contiguous_format)
        for optimizer in list(handle.models.optimizers):
            _lay_out_state(optimizer, converted, torch.contiguous_format)

    handle.patches.on_undo(undo)


def _lay_out(weights: Iterable[torch.Tensor], layout: torch.memory_format) -> None:
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=layout)
        if weight.grad is not None:
            weight.grad = weight.grad.contiguous(memory_format=layout)


def _lay_out_state(optimizer: Optimizer, weights: Container[torch.Tensor], layout: torch.memory_format) -> None:
    for parameter, state in optimizer.state.items():
        for key, value in state.items() if parameter in weights else ():
            if getattr(value, "ndim", 0) == 4:
                state[key] = value.contiguous(memory_format=layout)


def _contiguous(output: torch.Tensor) -> torch.Tensor:
    return output.contiguous() if output.dim() == 4 else output


def _suspect(symptoms: Symptoms) -> bool | None:
    convolutions = any(model.num_convolutions and not model.channels_last for model in symptoms.facts.models)
    return True if convolutions and symptoms.computes else None


def _prior(situation: Situation) -> float | None:
    models = situation.case.facts.models
    suits = any(m.num_convolutions and not m.channels_last for m in models) and not any(m.compiled for m in models)
    return 0.1 * situation.case.phase("forward", "backward") if suits else None


OPTIMIZATION = Optimization(
    name="channels_last",
    title="convolutions' weights and inputs lie channel by channel within each pixel",
    guarantee="rounding",
    answers=("channels_first",),
    propose=from_finding(
        "channels_first",
        otherwise="no convolution is in the other layout, or computing takes too little of the step",
        prior=_prior,
    ),
    enable=enable,
    helped_by=lambda _situation, _value: {"compile": "default"},
    experiments=(Experiment(cause="channels_first", suspect=_suspect, usual=0.15, saves_of=GRADIENT_PHASES),),
    problems=(
        Problem(
            kind="channels_first",
            title="Convolutions in channels-first layout",
            remedy="Call .to(memory_format=torch.channels_last) on the model and on its input.",
        ),
    ),
)
