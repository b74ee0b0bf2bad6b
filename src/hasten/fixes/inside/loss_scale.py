"""Loss scaling for float16: gradients too small for it are multiplied on their way back, and divided before they count.

In: a site. Out: the script's own `backward`, clipping and `step` work on gradients of the right size. Refuses what it
cannot follow: several losses at once, gradients that are asked for by `torch.autograd.grad`.

Micikevicius and others, Mixed Precision Training (ICLR 2018), with the numbers of torch's GradScaler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hasten.fixes.inside.site import Site

Function = Callable[..., object]
FIRST_SCALE = 65536.0
GROWTH, BACKOFF = 2.0, 0.5
GROWS_AFTER = 2000  # steps without an infinite gradient


class LossScale:
    """The factor, and which gradients carry it now."""

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self.num_skipped = 0
        self._steps_since = 0
        self._unscaled: set[int] = set()  # parameters whose gradients have been divided since the last step
        self._found_infinite = False

    def unscale(self, parameters: Iterable[torch.Tensor]) -> None:
        """Divide their gradients, once between two steps; note whether any is not finite."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and id(parameter) not in self._unscaled:
                self._unscaled.add(id(parameter))
                gradient.mul_(1.0 / self.scale)
                self._found_infinite = self._found_infinite or not bool(torch.isfinite(gradient).all())

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
            self.num_skipped += 1
            self._steps_since = 0
        else:
            self._steps_since += 1
            if self._steps_since % GROWS_AFTER == 0:
                self.scale *= GROWTH
        self._unscaled.clear()
        self._found_infinite = False


def scale_losses(site: Site, fix: str) -> None:
    """Scale every loss that backward is called on, and take the scale off before clipping and steps."""
    scale = LossScale()

    def backward(original: Function) -> Function:
        @functools.wraps(original)
        def scaled(tensors: object, grad_tensors: object = None, *arguments: object, **settings: object) -> object:
            if site.states.get(fix) != "on":
                return original(tensors, grad_tensors, *arguments, **settings)
            if not isinstance(tensors, torch.Tensor) or grad_tensors is not None or tensors.numel() != 1:
                site.refuse(fix, "backward is called on something else than one scalar loss")
                return original(tensors, grad_tensors, *arguments, **settings)
            return original(tensors, torch.full_like(tensors, scale.scale), *arguments, **settings)

        return scaled

    def clipping(original: Function) -> Function:
        @functools.wraps(original)
        def clip(parameters: torch.Tensor | Iterable[torch.Tensor], *arguments: object, **settings: object) -> object:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            if site.states.get(fix) == "on":
                scale.unscale(parameters)
            return original(parameters, *arguments, **settings)

        return clip

    site.patches.wrap(torch.autograd, "backward", backward)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        site.patches.wrap(torch.nn.utils, name, clipping)
    site.patches.on_undo(register_optimizer_step_pre_hook(scale.before_step).remove)
    site.patches.on_undo(register_optimizer_step_post_hook(scale.after_step).remove)
