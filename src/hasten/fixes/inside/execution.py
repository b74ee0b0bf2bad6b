"""The same mathematics, carried out otherwise.

In: a site and a value. Out: layout, kernels, threads and switches of torch as the fix wants them, from the first step
on. Refuses what the script has already.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from hasten.agent.frames import Lines, lines_above
from hasten.agent.handle import Handle, NotApplicableError
from hasten.agent.models import Forward
from hasten.agent.nests import tensors_in, with_tensors
from hasten.devices import cuda
from hasten.protocol import Value

Function = Callable[..., object]
ENOUGH = 2  # outputs in a row that were dropped: it is a validation
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def channels_last(handle: Handle, _value: Value) -> None:
    """Weights of convolutions, and what the model is given, lie channel by channel within each pixel."""

    converted = WeakTensorKeyDictionary()

    def convert(module: nn.Module) -> None:
        weights = [p for p in module.parameters() if p.dim() == 4]
        if not weights:
            raise NotApplicableError("the model has no convolution over images")
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise NotApplicableError("the model is wrapped for distributed training already")
        changed = [w for w in weights if not w.is_contiguous(memory_format=torch.channels_last)]
        converted.update((weight, None) for weight in changed)
        _lay_out(changed, torch.channels_last)

    def convert_state(optimizer: Optimizer) -> None:
        # A checkpoint's, or an earlier step's: kernels are slow where a parameter and its state differ in layout.
        _lay_out_state(optimizer, converted, torch.channels_last)
        handle.patches.on_undo(lambda: _lay_out_state(optimizer, converted, torch.contiguous_format))

    def around(
        _module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        arguments = tuple(_channels_last(a) for a in arguments)
        output = forward(*arguments, **{name: _channels_last(value) for name, value in settings.items()})
        return with_tensors(output, _as_it_was)  # the script may look at it by `view`

    handle.on_model(convert)
    handle.on_optimizer(convert_state)
    handle.around_forward(around)
    handle.patches.on_undo(lambda: _lay_out(list(converted), torch.contiguous_format))


def _lay_out(weights: Iterable[torch.Tensor], layout: torch.memory_format) -> None:
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=layout)
        if weight.grad is not None:
            weight.grad = weight.grad.contiguous(memory_format=layout)


def _lay_out_state(optimizer: Optimizer, weights: Container[torch.Tensor], layout: torch.memory_format) -> None:
    for parameter, state in optimizer.state.items():
        for key, tensor in state.items() if parameter in weights else ():
            if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
                state[key] = tensor.contiguous(memory_format=layout)


def _channels_last(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _as_it_was(output: torch.Tensor) -> torch.Tensor:
    return output.contiguous() if output.dim() == 4 else output


def compile(handle: Handle, value: Value) -> None:
    """The roots' forward compiled by torch.compile, in place: the model and its state keys stay what they are."""

    compiled: WeakKeyDictionary[nn.Module, Forward] = WeakKeyDictionary()

    def around(
        module: nn.Module, _forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        if module not in compiled:
            compiled[module] = handle.models.compile(module, mode=str(value))
        output = compiled[module](*arguments, **settings)
        # The next call of a captured graph writes to the same memory, and the script may keep what it was given.
        return with_tensors(output, torch.clone) if value == "reduce-overhead" else output

    handle.around_forward(around)


def fused_optimizer(handle: Handle, _value: Value) -> None:
    """One kernel updates all parameters, instead of several for each."""

    def fuse(optimizer: Optimizer) -> None:
        if type(optimizer).__name__ not in FUSED or not type(optimizer).__module__.startswith("torch.optim"):
            raise NotApplicableError(f"{type(optimizer).__name__} has no fused implementation")
        for group in optimizer.param_groups:
            if group.get("fused"):
                raise NotApplicableError("the optimizer is fused already")
            if group.get("differentiable") or any(not p.is_floating_point() for p in group["params"]):
                raise NotApplicableError("the fused implementation cannot do what is asked of the optimizer")
        before = [(group.get("fused"), group.get("foreach")) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
        for parameter, state in optimizer.state.items():  # of a checkpoint: the kernel counts where the parameter is
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(parameter.device)
        hook = optimizer.register_state_dict_post_hook(functools.partial(_as_written, before))

        def undo() -> None:
            hook.remove()
            for group, (fused, foreach) in zip(optimizer.param_groups, before):
                group["fused"], group["foreach"] = fused, foreach
            for state in optimizer.state.values():
                if isinstance(state.get("step"), torch.Tensor) and not any(fused for fused, _ in before):
                    state["step"] = state["step"].cpu()

        handle.patches.on_undo(undo)

    handle.on_optimizer(fuse)


def _as_written(before: Sequence[tuple[object, object]], _optimizer: Optimizer, state: dict[str, Any]) -> None:
    """What is saved says what the script said."""
    for group, (fused, foreach) in zip(state["param_groups"], before):
        group["fused"], group["foreach"] = fused, foreach


def set_to_none(handle: Handle, _value: Value) -> None:
    """Gradients are dropped between steps, not filled with zeros.

    A parameter that a step does not use has no gradient then, and an optimizer leaves it alone; with a gradient of zeros
    its momentum and its weight decay go on. So it is given zeros before the optimizer's step.
    """
    had: set[int] = set()  # parameters that the script would have given zeros
    asked: list[bool] = []

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def zero_grad(self: object, set_to_none: bool = True) -> object:
            if not set_to_none and not asked:
                asked.append(True)
                handle.patches.on_undo(register_optimizer_step_pre_hook(as_asked).remove)
            return original(self, True)

        return zero_grad

    def as_asked(optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    had.add(id(parameter))
                elif id(parameter) in had:
                    parameter.grad = torch.zeros_like(parameter)

    handle.patches.wrap(Optimizer, "zero_grad", make)
    handle.patches.wrap(nn.Module, "zero_grad", make)


def cudnn_benchmark(handle: Handle, value: Value) -> None:
    """cuDNN tries its algorithms on each new shape and keeps the fastest; or does not."""
    handle.patches.on_undo(cuda.autotune(bool(value)))


def flush_denormal(handle: Handle, _value: Value) -> None:
    """Numbers below 1e-38 count as zero, whatever the script says; on some CPUs each of them costs a hundred cycles."""
    flush = torch.set_flush_denormal
    if not flush(True):
        raise NotApplicableError("this CPU cannot flush denormal numbers")

    def set_flush_denormal(mode: bool) -> bool:
        return flush(True)

    handle.patches.set(torch, "set_flush_denormal", set_flush_denormal)
    handle.patches.on_undo(lambda: flush(False))


def cpu_threads(handle: Handle, value: Value) -> None:
    """Operators of the training process run on so many threads, whatever the script says."""
    if multiprocessing.parent_process() is not None:
        return  # a spawned worker, whose one thread is enough
    before = torch.get_num_threads()
    torch.set_num_threads(int(value))
    handle.patches.on_undo(lambda: torch.set_num_threads(before))
    thread, process = handle.models.thread, os.getpid()

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def set_num_threads(number: int) -> None:
            # Loader workers are forked, or are threads, and keep their one.
            if get_ident() != thread or os.getpid() != process:
                original(number)

        return set_num_threads

    handle.patches.wrap(torch, "set_num_threads", make)


def no_grad_validation(handle: Handle, _value: Value) -> None:
    """A forward in evaluation mode records nothing for a backward that never comes.

    Whether one comes is seen for each way by which the script calls the model, all lines of it, for a function may serve
    validation and training: the first outputs there are recorded as ever, and only where those were dropped without a
    backward is nothing recorded from then on.
    """
    places = _Validations()

    def around(
        module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        # A network in evaluation mode may still pass gradients on to what made its input.
        if (
            module.training
            or not torch.is_grad_enabled()
            or any(tensor.requires_grad for tensor in tensors_in((arguments, settings)))
        ):
            return forward(*arguments, **settings)
        place = lines_above(sys._getframe())  # pyright: ignore[reportPrivateUsage]
        if places.is_validation(place):
            with torch.no_grad():
                return forward(*arguments, **settings)
        output = forward(*arguments, **settings)
        places.watch(place, output)
        return output

    handle.around_forward(around)


class _Validations:
    """The places from which a model is called in evaluation mode, and what became of its outputs."""

    def __init__(self) -> None:
        self._watched: dict[Lines, list[list[weakref.ref[Function]]]] = {}  # the last outputs' hooks
        self._dropped: dict[Lines, int] = {}  # outputs in a row
        self._learning: set[Lines] = set()

    def is_validation(self, place: Lines) -> bool:
        """Whether outputs made there were dropped, and no backward ever reached one."""
        watched = self._watched.setdefault(place, [])
        if len(watched) > 1:  # the last one is still in the script's variables
            dropped = not any(hook() for hook in watched.pop(0))  # a hook lives as long as the graph that it is on
            self._dropped[place] = self._dropped.get(place, 0) + 1 if dropped else 0
        return place not in self._learning and self._dropped.get(place, 0) >= ENOUGH

    def watch(self, place: Lines, output: object) -> None:
        """Note whether a backward reaches this output."""
        hooks: list[weakref.ref[Function]] = []
        for tensor in tensors_in(output):
            if tensor.requires_grad:

                def reached(_gradient: object) -> None:
                    self._learning.add(place)

                tensor.register_hook(reached)
                hooks.append(weakref.ref(reached))
        self._watched[place].append(hooks)
