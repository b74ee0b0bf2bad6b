"""Mixed precision for a model that has chosen none: its forward under autocast, and its losses scaled."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Generator, Iterable
from types import CodeType, FrameType

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hasten.agent.handle import Handle
from hasten.agent.root import Forward
from hasten.agent.tree import with_tensors
from hasten.devices import accelerator, cuda
from hasten.errors import NotApplicableError

MOST_LINES = 5  # of a `with` statement


def under_autocast(handle: Handle, dtype: torch.dtype) -> None:
    """Run the roots' forward under autocast, and hand out float32."""
    options = _Options(handle)

    def around(
        module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        device = next(iter(module.parameters())).device.type  # a script may return a list
        if accelerator.in_mixed_precision(device):  # by the script, since
            return forward(*arguments, **settings)
        with torch.autocast(device, dtype=dtype), options.within(module, dtype):
            output = forward(*arguments, **settings)
        return with_tensors(output, lambda tensor: tensor.float() if tensor.dtype == dtype else tensor)

    handle.on_model(lambda module: _check(module, dtype))
    handle.around_forward(around)


def _check(module: nn.Module, dtype: torch.dtype) -> None:
    """Refuse models that have a precision of their own."""
    parameters = list(module.parameters())
    dtypes = {p.dtype for p in parameters if p.is_floating_point()}
    device = parameters[0].device.type
    if dtypes != {torch.float32}:
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        raise NotApplicableError(f"the model's parameters are {names}, not float32")
    if accelerator.in_mixed_precision(device):
        raise NotApplicableError("the script uses autocast itself")
    if dtype == torch.bfloat16 and device == "cuda" and not cuda.has_bf16():
        raise NotApplicableError("this GPU has no bfloat16 units")


class _Options:
    """Contexts of a root's own forward that autocast is switched off in by an option: `autocast(enabled=args.amp)`.

    An option left off is no choice of precision. A context that says `enabled=False` or `float32`, or that anything but the root's own
    forward opens, is one: it guards what needs float32, and stays off.
    """

    def __init__(self, handle: Handle) -> None:
        self._codes: list[CodeType | None] = []  # of the roots' forwards that run under our autocast
        self._dtype = torch.float32
        handle.patches.wrap(torch.autocast, "__enter__", self._entering)

    @contextlib.contextmanager
    def within(self, module: nn.Module, dtype: torch.dtype) -> Generator[None]:
        """While the module's forward runs under autocast of ours."""
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        self._dtype = dtype
        self._codes.append(code)
        try:
            yield
        finally:
            self._codes.pop()

    def _entering(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def __enter__(context: torch.autocast) -> object:
            entered = original(context)
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            off = not accelerator.in_mixed_precision(context.device)
            if off and self._codes and frame.f_code is self._codes[-1] and not _says_off(frame):
                torch.set_autocast_enabled(context.device, True)  # leaving the context restores what was before it
                torch.set_autocast_dtype(context.device, self._dtype)
            return entered

        return __enter__


def _says_off(frame: FrameType) -> bool:
    """Whether the `with` statement itself switches autocast off; where its source is not there, it is taken to."""
    lines = (linecache.getline(frame.f_code.co_filename, frame.f_lineno + n) for n in range(MOST_LINES))
    statement = "".join(itertools.takewhile(bool, lines)).partition("):")[0]
    return not statement or re.search(r"\b(False|float32)\b", statement) is not None


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
