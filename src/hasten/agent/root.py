"""What a root module calls in the place of its own `__call__`, and what torch leaves out of every copy of it.

It stands in `_compiled_call_impl`, the attribute in which torch keeps what `module.compile()` made: `nn.Module.__call__`
calls what is there. Torch removes it from what it pickles and deep-copies; where a class hands out its whole `__dict__`, a
pickle and a deep copy hold None instead, and a shallow copy that shares it calls itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol
from weakref import ref

import torch
from torch import nn

Forward = Callable[..., object]
_CALLS_IT = nn.Module._wrapped_call_impl.__code__  # pyright: ignore[reportPrivateUsage]


class Models(Protocol):
    """Whom a root hands its calls to."""

    def call(
        self,
        root: RootCall,
        module: nn.Module,
        forward: Forward,
        arguments: tuple[object, ...],
        settings: dict[str, object],
    ) -> object:
        """A root's forward, with everything that is around it."""


class RootCall:
    """One root module: a module that is called from outside any other."""

    def __init__(self, models: Models, module: nn.Module) -> None:
        compiled = module._compiled_call_impl  # pyright: ignore[reportPrivateUsage]
        self.compiled: Forward | None = None if isinstance(compiled, RootCall) else compiled  # by the script
        self.module = ref(module)
        self.was_called = False
        self.is_trained = False  # called in training with something to learn
        self.is_step = False  # its forward steps an optimizer
        self._models = models

    def __call__(self, /, *arguments: object, **settings: object) -> object:
        """In the place of the module's own call."""
        own = self.module()
        forward = self.compiled or (own._call_impl if own is not None else None)  # pyright: ignore[reportPrivateUsage]
        if forward is not None and _is_exported():  # what is exported is the script's
            return forward(*arguments, **settings)
        # The module that is called may be a copy that shares this attribute: its caller has it as `self`.
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        module: Any = frame.f_locals["self"] if frame.f_code is _CALLS_IT else own
        if module is not own or own is None or forward is None:
            return module._call_impl(*arguments, **settings)
        return self._models.call(self, own, forward, arguments, settings)

    def take_for_step(self) -> None:
        """What was taken for a model trains in its forward: the modules that it calls are the models."""
        self.is_step, self.was_called, self.is_trained = True, False, False

    def put_on(self) -> None:
        """Have the module call this. Not by `setattr`: a compiled module hands that on to the module that it compiled."""
        module = self.module()
        if module is not None:
            module.__dict__["_compiled_call_impl"] = self

    def take_off(self) -> None:
        """Have the module call what it called before."""
        module = self.module()
        if module is None or module.__dict__.get("_compiled_call_impl") is not self:
            return
        if self.compiled is not None:
            module.__dict__["_compiled_call_impl"] = self.compiled
        else:
            del module.__dict__["_compiled_call_impl"]

    def shares_with(self, target: nn.Module) -> bool:
        """Whether one of the two modules is a part of the other."""
        module = self.module()
        return module is not None and (
            any(part is module for part in target.modules()) or any(part is target for part in module.modules())
        )

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def __deepcopy__(self, _memo: object) -> None:
        return None


def is_compiled(module: nn.Module) -> bool:
    """Whether the script compiles the module, or one inside it."""
    if any(type(inner).__name__ == "OptimizedModule" for inner in module.modules()):
        return True
    call = module._compiled_call_impl  # pyright: ignore[reportPrivateUsage]
    return (call.compiled if isinstance(call, RootCall) else call) is not None


def trains(module: nn.Module) -> bool:
    """Whether any of its parameters is to be learned."""
    return any(parameter.requires_grad for parameter in module.parameters())


def in_backward() -> bool:
    """Whether a backward is running in this thread: what is called then is computed again."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def _is_exported() -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
