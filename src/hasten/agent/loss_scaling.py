"""Loss scaling for float16: small gradients are multiplied on their way back, and divided before they are used.

The script's own `backward`, clipping and `step` see gradients of their true size. Several losses at once and optimizer steps
with a closure are refused. Gradients from `torch.autograd.grad` are not scaled. Method: Micikevicius et al., Mixed Precision
Training (ICLR 2018), with the numbers of torch's GradScaler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hasten.agent.handle import Handle

Function = Callable[..., object]
FIRST_SCALE = 65536.0
GROWTH, BACKOFF = 2.0, 0.5
GROWS_AFTER = 2000  # steps without an infinite gradient


class LossScale:
    """The factor, and which gradients carry it now."""

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self._steps_since = 0
        self._carried = FIRST_SCALE  # by what the last backward has made
        self._backwards = 0  # that were scaled
        self._left: dict[int, tuple[int, int, int]] = {}  # of parameters: backwards then, gradient, its version
        self._found_infinite = False

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The gradient of a loss to begin its backward with."""
        self._backwards += 1
        self._carried = self.scale
        return torch.full_like(loss, self.scale)

    def unscale(self, parameters: Iterable[torch.Tensor]) -> None:
        """Divide what carries the factor, once; note whether any of it is not finite.

        A gradient carries it where a scaled backward came since it was last divided, and has changed it.
        """
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            backwards, which, version = self._left.get(id(parameter), (0, 0, 0))
            if self._backwards > backwards and (which, version) != (id(gradient), gradient._version):
                gradient.mul_(1.0 / self._carried)
                self._found_infinite = self._found_infinite or not bool(torch.isfinite(gradient).all())
            self.leave([parameter])

    def leave(self, parameters: Iterable[torch.Tensor]) -> None:
        """Their gradients have their true size now, after any change."""
        for parameter in parameters:
            if parameter.grad is not None:
                self._left[id(parameter)] = self._backwards, id(parameter.grad), parameter.grad._version

    def before_step(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        """Gradients of their right size; none at all where one is not finite, and the step changes nothing."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.unscale(parameters)
        if self._found_infinite:
            for parameter in parameters:
                parameter.grad = None

    def after_step(self, _optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        """The next steps are scaled by less after an infinite gradient, by more after many finite ones."""
        if self._found_infinite:
            self.scale *= BACKOFF
            self._steps_since = 0
        else:
            self._steps_since += 1
            if self._steps_since % GROWS_AFTER == 0:
                self.scale *= GROWTH
        self._found_infinite = False


def scale_losses(handle: Handle) -> None:
    """Scale every loss that backward is called on, and take the scale off before clipping and steps."""
    scale = LossScale()

    def backward(original: Function) -> Function:
        @functools.wraps(original)
        def scaled(tensors: object, grad_tensors: object = None, *arguments: object, **settings: object) -> object:
            if not handle.is_enabled:
                return original(tensors, grad_tensors, *arguments, **settings)
            if not isinstance(tensors, torch.Tensor) or grad_tensors is not None or tensors.numel() != 1:
                handle.refuse("backward is called on something else than one scalar loss")
                return original(tensors, grad_tensors, *arguments, **settings)
            return original(tensors, scale.scaled(tensors), *arguments, **settings)

        return scaled

    def clipping(original: Function) -> Function:
        @functools.wraps(original)
        def clip(parameters: torch.Tensor | Iterable[torch.Tensor], *arguments: object, **settings: object) -> object:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            scale.unscale(parameters)
            clipped = original(parameters, *arguments, **settings)
            scale.leave(parameters)
            return clipped

        return clip

    def before_step(optimizer: Optimizer, arguments: tuple[object, ...], settings: dict[str, object]) -> None:
        if any(callable(value) for value in (*arguments[1:], *settings.values())):
            handle.refuse("the optimizer calls the script's backward itself, and gradients cannot be divided before")
        scale.before_step(optimizer, arguments, settings)

    handle.patches.wrap(torch.autograd, "backward", backward)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):  # one function, called by either name
            handle.patches.wrap(module, name, clipping)
    handle.patches.on_undo(register_optimizer_step_pre_hook(before_step).remove)
    handle.patches.on_undo(register_optimizer_step_post_hook(scale.after_step).remove)
