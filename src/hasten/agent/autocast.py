"""The roots' forward under autocast, for a model that has chosen no precision."""

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

from hasten.agent.handle import Handle
from hasten.agent.root import Forward
from hasten.agent.tree import with_tensors
from hasten.devices import cuda
from hasten.errors import NotApplicableError

MOST_LINES = 5  # of a `with` statement


def under_autocast(handle: Handle, dtype: torch.dtype) -> None:
    """Run the roots' forward under autocast, and hand out float32."""
    options = _Options(handle)

    def around(
        module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        device = next(module.parameters()).device.type
        if torch.is_autocast_enabled(device):  # by the script, since
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
    if torch.is_autocast_enabled(device):
        raise NotApplicableError("the script uses autocast itself")
    if dtype == torch.bfloat16 and device == "cuda" and not cuda.has_bf16():
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
