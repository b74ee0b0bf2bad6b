"""Reduced precision for a model that asked for none.

In: a handle. Out: products are made in fewer bits; what the script sees stays float32. Refuses scripts that have chosen
a precision themselves.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Generator
from types import CodeType, FrameType

import torch
from torch import nn

from hasten.agent.handle import Handle, NotApplicableError
from hasten.agent.models import Forward
from hasten.agent.nests import to_float32
from hasten.devices import cuda
from hasten.fixes.inside.loss_scale import scale_losses
from hasten.protocol import Value

MOST_LINES = 5  # of a `with` statement


def bf16(handle: Handle, _value: Value) -> None:
    """The roots' forward under bfloat16 autocast, and their output in float32.

    Around each forward alone: where autocast is on from one step to the next, the cached casts of the weights are
    never renewed, and training stands still without a word.
    """
    handle.on_model(lambda module: _check_autocast(handle.name, module))
    handle.around_forward(_under(torch.bfloat16, _Options(handle)))


def fp16(handle: Handle, _value: Value) -> None:
    """The roots' forward under float16 autocast, the loss scaled so that small gradients survive."""
    if not cuda.is_available():
        raise NotApplicableError("float16 training needs a CUDA device")
    handle.on_model(lambda module: _check_autocast(handle.name, module))
    handle.around_forward(_under(torch.float16, _Options(handle)))
    scale_losses(handle)


def tf32(handle: Handle, _value: Value) -> None:
    """Products of float32 on NVIDIA's tensor cores, with 10 bits of mantissa."""
    needs = "it needs an NVIDIA GPU of compute capability 8.0 or later"
    if not cuda.is_available():
        raise NotApplicableError(needs)
    is_on: list[bool] = []

    def allow(_module: nn.Module) -> None:
        if is_on:
            return
        if not cuda.has_tf32():
            raise NotApplicableError(needs)
        if cuda.allows_tf32():
            raise NotApplicableError("the script allows it itself")
        is_on.append(True)
        handle.patches.on_undo(cuda.allow_tf32())

    handle.on_model(allow)  # not before: the script chooses its device after `import torch`


def matmul_precision(handle: Handle, value: Value) -> None:
    """Products inside float32 matrix multiplications in fewer bits: "high" or "medium"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(str(value))
    handle.patches.on_undo(lambda: torch.set_float32_matmul_precision(before))


def _check_autocast(fix: str, module: nn.Module) -> None:
    """Refuse models that have a precision of their own."""
    parameters = list(module.parameters())
    dtypes = {p.dtype for p in parameters if p.is_floating_point()}
    device = parameters[0].device.type
    if dtypes != {torch.float32}:
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        raise NotApplicableError(f"the model's parameters are {names}, not float32")
    if torch.is_autocast_enabled(device):
        raise NotApplicableError("the script uses autocast itself")
    if fix == "bf16" and device == "cuda" and not cuda.has_bf16():
        raise NotApplicableError("this GPU has no bfloat16 units")


class _Options:
    """Contexts of a root's own forward that autocast is switched off in by an option: `autocast(enabled=args.amp)`.

    An option left off is no choice of precision. A context that says `enabled=False`, or that anything but the root's own
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
            off = not torch.is_autocast_enabled(context.device)
            if off and self._codes and frame.f_code is self._codes[-1] and not _says_false(frame):
                torch.set_autocast_enabled(context.device, True)  # leaving the context restores what was before it
                torch.set_autocast_dtype(context.device, self._dtype)
            return entered

        return __enter__


def _says_false(frame: FrameType) -> bool:
    """Whether the `with` statement itself switches autocast off; where its source is not there, it is taken to."""
    lines = (linecache.getline(frame.f_code.co_filename, frame.f_lineno + n) for n in range(MOST_LINES))
    statement = "".join(itertools.takewhile(bool, lines)).partition("):")[0]
    return not statement or re.search(r"\bFalse\b", statement) is not None


def _under(
    dtype: torch.dtype, options: _Options
) -> Callable[[nn.Module, Forward, tuple[object, ...], dict[str, object]], object]:
    def around(
        module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        device = next(module.parameters()).device.type
        if torch.is_autocast_enabled(device):  # by the script, since
            return forward(*arguments, **settings)
        with torch.autocast(device, dtype=dtype), options.within(module, dtype):
            output = forward(*arguments, **settings)
        return to_float32(output, dtype)

    return around
