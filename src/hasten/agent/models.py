"""The models and optimizers of a process: found when they are called, and what happens around their calls.

A root is a module that is called from outside any other module. While discovering, `nn.Module.__call__` is wrapped, which
costs about 2 microseconds a module and call; afterwards each root alone has a callable of ours in `_compiled_call_impl`,
the attribute in which torch keeps what `module.compile()` made. Torch leaves that attribute out of what it pickles and
copies, and where a class pickles its whole `__dict__`, the callable becomes None. So what a script saves, copies,
compiles and exports is what it would be without hasten.

A script that compiles keeps its models to itself: what is inside a compiled function would be traced. There the roots are
what `torch.compile` returned, and the modules that are nobody's child and hold a parameter that an optimizer updates.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from threading import get_ident
from typing import Protocol
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hasten.patches import Patches

Forward = Callable[..., object]
Around = Callable[[nn.Module, Forward, tuple[object, ...], dict[str, object]], object]


class Watcher(Protocol):
    """Sees every forward of a root, from its beginning to its end."""

    def waits(self) -> bool:
        """Whether a batch is being waited for: modules that are called then are transforms, not models."""
        ...

    def enter(self, module: nn.Module) -> float | None:
        """A forward begins; what is returned is handed to `leave`. None: `leave` is not called."""
        ...

    def leave(self, module: nn.Module, start: float, arguments: tuple[object, ...], output: object) -> None:
        """A forward has ended, or has raised."""


class Models:
    """The roots of one process, and its optimizers.

    Args:
        patches: what takes everything off again.
    """

    def __init__(self, patches: Patches) -> None:
        self.thread = get_ident()
        self.watcher: Watcher | None = None
        self.compiled = False  # by the script: something, and perhaps not what trains
        self.trains_compiled = False  # what trains is compiled, as far as is known
        self.arounds: list[Around] = []  # the first is outermost
        self.actions: list[Action] = []
        self.optimizer_actions: list[OptimizerAction] = []
        self.on_compile: list[Callable[[], object]] = []
        self.inside = 0  # forwards of roots that are running
        self._roots: dict[int, _Call] = {}
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._compiling = False  # by an optimization
        self._discovering = Patches()
        self._steps_left: int | None = None  # until every root has been called; None: not discovering
        self._stepping = False  # a step has begun since discovering began
        patches.on_undo(self._release)
        patches.on_undo(self._discovering.undo)
        patches.wrap(torch, "compile", self._noting_compile)
        patches.wrap(nn.Module, "compile", self._noting_compile)
        patches.wrap(nn.Module, "_replicate_for_data_parallel", _replicating)
        for name in ("script", "trace", "trace_module"):
            patches.wrap(torch.jit, name, self._as_written)
        patches.wrap(Optimizer, "__init__", self._beginning)
        # An optimization can be disabled within a step's hook, a hook cannot be removed: torch iterates over them.
        patches.on_undo(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.on_undo(register_optimizer_step_post_hook(self._after_step).remove)

    # ---------------------------------------------------------------------------------------- finding the roots

    def discover(self, *, num_steps: int = 1) -> None:
        """Look at every module that is called, until so many optimizer steps have begun and ended."""
        self._discovering.undo()
        self._steps_left, self._stepping = num_steps, False
        if not self.compiled:
            self._discovering.wrap(nn.Module, "__call__", self._meeting)

    def settle(self) -> None:
        """Every root has been called."""
        self._discovering.undo()
        self._steps_left = None
        if self.compiled:
            for module in _ancestors_of({id(parameter) for parameter in self.parameters()}):
                self._note(module)

    def parameters(self) -> list[torch.Tensor]:
        """What the optimizers that have stepped update."""
        return [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]

    def _beginning(self, original: Forward) -> Forward:
        """A second fold, or a fine-tuning after a pretraining, has an optimizer of its own, and a model."""

        @functools.wraps(original)
        def __init__(self_: object, /, *arguments: object, **settings: object) -> object:
            if self._optimizers:
                self.discover()
            return original(self_, *arguments, **settings)

        return __init__

    def _before_step(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        self._stepping = True
        self._optimizers.add(optimizer)
        for action in self.optimizer_actions:
            action.on(optimizer)

    def _after_step(self, _optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        if self._steps_left is not None and self._stepping:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self.settle()

    def all(self) -> list[nn.Module]:
        """The roots that were called so far and still exist."""
        called = [call.module() for call in self._roots.values() if call.was_called]
        return [module for module in called if module is not None]

    def is_trained(self, module: nn.Module) -> bool:
        """Whether a root was called in training with something to learn."""
        root = self._roots.get(id(module))
        return root is not None and root.is_trained

    def _meeting(self, original: Forward) -> Forward:
        @functools.wraps(original)
        def __call__(module: nn.Module, /, *arguments: object, **settings: object) -> object:
            if not self.inside and self.here() and not (self.watcher is not None and self.watcher.waits()):
                self._note(module)
            return original(module, *arguments, **settings)

        return __call__

    def here(self) -> bool:
        """Whether this is the training thread."""
        return get_ident() == self.thread

    def _note(self, module: nn.Module) -> None:
        known = self._roots.get(id(module))
        if known is not None and known.module() is module:
            return
        self._roots[id(module)] = call = _Call(self, module)
        for action in self.actions:  # the number of a module that is gone may be given again
            action.done.discard(id(module))
        call.put_on()

    def _release(self) -> None:
        for call in self._roots.values():
            call.take_off()
        self._roots = {}

    # ------------------------------------------------------------------------------------------- their forward

    def call(
        self, module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        """A root's forward, with everything that is around it."""
        if self.inside or not self.here():
            return forward(*arguments, **settings)
        root = self._roots.get(id(module))
        if root is not None:
            root.was_called = True
            root.is_trained = root.is_trained or (module.training and torch.is_grad_enabled() and trains(module))
        watcher = self.watcher
        start = watcher.enter(module) if watcher is not None and not watcher.waits() else None
        self.inside += 1
        output: object = None
        try:
            output = self._around(module, forward, arguments, settings)
            return output
        finally:
            self.inside -= 1
            if start is not None and watcher is not None:
                watcher.leave(module, start, arguments, output)

    def _around(
        self, module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        if self.actions and module.training and torch.is_grad_enabled():
            for action in self.actions:
                action.on(module)
        if not self.arounds or not self.is_trained(module):
            return forward(*arguments, **settings)
        call = functools.partial(self._inner, forward)
        for around in reversed(self.arounds):
            call = functools.partial(_call, around, module, call)
        return call(*arguments, **settings)

    def _inner(self, forward: Forward, /, *arguments: object, **settings: object) -> object:
        """The forward, which an optimization may call again in backward: what it calls is no root there either."""
        self.inside += 1
        try:
            return forward(*arguments, **settings)
        finally:
            self.inside -= 1

    def _as_written(self, original: Forward) -> Forward:
        """TorchScript looks at every attribute of a module."""

        @functools.wraps(original)
        def script(*arguments: object, **settings: object) -> object:
            for call in self._roots.values():
                call.take_off()
            try:
                return original(*arguments, **settings)
            finally:
                for call in self._roots.values():
                    call.put_on()

        return script

    # --------------------------------------------------------------------------------------------- compiling

    def compile(self, module: nn.Module, *, mode: str) -> Forward:
        """The module's forward compiled by us."""
        module_of = ref(module)  # what is returned holds no reference to the module

        def forward(*arguments: object, **settings: object) -> object:
            return module_of()._call_impl(*arguments, **settings)  # type: ignore[union-attr]

        self._compiling = True
        try:
            return torch.compile(forward, mode=mode)
        finally:
            self._compiling = False

    def _noting_compile(self, original: Forward) -> Forward:
        @functools.wraps(original)
        def compile(*arguments: object, **settings: object) -> object:
            if self._compiling:
                return original(*arguments, **settings)
            target = arguments[0] if arguments else settings.get("model")
            self._leave_to_compiler(target)
            result = original(*arguments, **settings)
            made = target if result is None else result
            if isinstance(made, nn.Module):
                self._note(made)
            return result

        return compile

    def _leave_to_compiler(self, target: object) -> None:
        """Let go of roots that may be traced: those that share modules with `target`, or all if it is a function."""
        self.compiled = True
        self._discovering.undo()
        roots = [call for call in self._roots.values() if call.module() is not None]
        traced = [call for call in roots if not isinstance(target, nn.Module) or call.shares_with(target)]
        # A copy that is compiled for an export leaves the model that trains as it is.
        self.trains_compiled |= any(c.is_trained for c in traced) or not any(c.is_trained for c in roots)
        for call in traced:
            call.take_off()
            self._roots = {number: known for number, known in self._roots.items() if known is not call}
        if self.trains_compiled:
            for action in self.on_compile:
                action()


class Action:
    """Something that is done once for each model, before its first forward in training."""

    def __init__(self, function: Callable[[nn.Module], object]) -> None:
        self.function = function
        self.done: set[int] = set()

    def on(self, module: nn.Module) -> None:
        """Do it, if it was not done and the module has something to learn."""
        if id(module) not in self.done:
            self.done.add(id(module))
            if trains(module):
                self.function(module)


class OptimizerAction:
    """Something that is done once for each optimizer, before its first step from now on."""

    def __init__(self, function: Callable[[Optimizer], object]) -> None:
        self.function = function
        self.done: WeakSet[Optimizer] = WeakSet()

    def on(self, optimizer: Optimizer) -> None:
        """Do it, if it was not done."""
        if optimizer not in self.done:
            self.done.add(optimizer)
            self.function(optimizer)


def is_compiled(module: nn.Module) -> bool:
    """Whether the script compiles the module, or one inside it."""
    if any(type(inner).__name__ == "OptimizedModule" for inner in module.modules()):
        return True
    call = module._compiled_call_impl  # pyright: ignore[reportPrivateUsage]
    return (call.compiled if isinstance(call, _Call) else call) is not None


class _Call:
    """What is in a root's `_compiled_call_impl`."""

    def __init__(self, models: Models, module: nn.Module) -> None:
        self.models = models
        self.module = ref(module)
        compiled = module._compiled_call_impl  # pyright: ignore[reportPrivateUsage]
        self.compiled: Forward | None = compiled  # by the script
        self.was_called = False
        self.is_trained = False  # called in training with something to learn

    def shares_with(self, target: nn.Module) -> bool:
        """Whether one of the two modules is a part of the other."""
        module = self.module()
        return module is not None and (
            any(part is module for part in target.modules()) or any(part is target for part in module.modules())
        )

    def __call__(self, /, *arguments: object, **settings: object) -> object:
        module = self.module()
        assert module is not None, "it is called by its module alone"
        forward = self.compiled or module._call_impl  # pyright: ignore[reportPrivateUsage]
        if _is_exported():
            return forward(*arguments, **settings)
        return self.models.call(module, forward, arguments, settings)

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

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a copy, or what a file holds of it, is None

    def __deepcopy__(self, _memo: object) -> None:
        return None


def _call(around: Around, module: nn.Module, forward: Forward, /, *arguments: object, **settings: object) -> object:
    return around(module, forward, arguments, settings)


def _replicating(original: Callable[..., object]) -> Callable[..., object]:
    """A replica on another GPU calls itself, not the module that it was made of."""

    @functools.wraps(original)
    def _replicate_for_data_parallel(module: nn.Module) -> object:
        replica = original(module)
        if isinstance(replica.__dict__.get("_compiled_call_impl"), _Call):
            del replica.__dict__["_compiled_call_impl"]
        return replica

    return _replicate_for_data_parallel


def _is_exported() -> bool:
    """Whether the model is being traced: what is exported is the script's."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def trains(module: nn.Module) -> bool:
    """Whether any of its parameters is to be learned."""
    return any(parameter.requires_grad for parameter in module.parameters())


def _ancestors_of(parameters: set[int]) -> list[nn.Module]:
    # By type: `isinstance` asks an object for its __class__, at which deprecated stand-ins warn.
    modules: list[nn.Module] = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
    children = {id(child) for module in modules for child in module.children()}
    return [
        module
        for module in modules
        if id(module) not in children and any(id(p) in parameters for p in module.parameters())
    ]
