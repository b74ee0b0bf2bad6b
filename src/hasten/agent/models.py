"""The models and optimizers of a process: found when they are called, and what happens around their calls.

A root is a module that is called from outside any other; a module whose forward steps an optimizer is no model but a
step of training, and what it calls are the roots. While discovering, `nn.Module.__call__` is wrapped, which costs
about 2 microseconds a module and call; afterwards each root alone is called through hasten (see `root`).

A script that compiles keeps its models to itself: what is inside a compiled function would be traced. There the roots are
what `torch.compile` returned, and the modules that are nobody's child and hold a parameter that an optimizer updates.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from threading import get_ident
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from hasten.agent.root import Forward, RootCall, in_backward, trains
from hasten.patches import Patches, warn

Around = Callable[[nn.Module, Forward, tuple[object, ...], dict[str, object]], object]
Subject = TypeVar("Subject", nn.Module, Optimizer)
Result = TypeVar("Result")


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


class Once(Generic[Subject]):
    """Something that is done once for each model that trains, or for each optimizer, before its next call or step."""

    def __init__(self, function: Callable[[Subject], object]) -> None:
        self._function = function
        self._done: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def on(self, subject: Subject) -> None:
        """Do it, if it was not done."""
        if subject not in self._done:
            self._done[subject] = True
            self._function(subject)


class Models:
    """The roots of one process, and its optimizers.

    Args:
        patches: what takes everything off again.
    """

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self.thread = get_ident()
        self.watcher: Watcher | None = None
        self.optimizers: WeakSet[Optimizer] = WeakSet()  # that have stepped
        self.compiled = False  # by the script: something, and perhaps not what trains
        self.trains_compiled = False  # what trains is compiled, as far as is known
        self.arounds: list[Around] = []  # the first is outermost
        self.model_actions: list[Once[nn.Module]] = []
        self.optimizer_actions: list[Once[Optimizer]] = []
        self.on_compile: list[Callable[[], object]] = []
        self._inside: RootCall | None = None  # the root whose forward is running
        self._roots: WeakIdKeyDictionary = WeakIdKeyDictionary()  # RootCall by module
        self._compiling = False  # by an optimization
        self._is_wanted = False  # somebody has asked for roots
        self._discovering: WeakSet[Optimizer] | None = None  # that have stepped since it began
        self._wrapped = Patches()  # while discovering
        self._last_optimizer: Callable[[], Optimizer | None] = lambda: None
        patches.on_undo(self._release)
        patches.on_undo(self._wrapped.undo)
        patches.wrap(torch, "compile", self._noting_compile)
        patches.wrap(nn.Module, "compile", self._noting_compile)
        for name in ("script", "trace", "trace_module"):
            patches.wrap(torch.jit, name, self._as_written)
        patches.wrap(Optimizer, "__init__", self._beginning)
        # An optimization can be disabled within a step's hook, a hook cannot be removed: torch iterates over them.
        patches.on_undo(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.on_undo(register_optimizer_step_post_hook(self._after_step).remove)

    # ---------------------------------------------------------------------------------------- finding the roots

    def discover(self) -> None:
        """Look at every module that is called, until an optimizer has stepped twice: then every model had its turn."""
        self._is_wanted = True
        self._wrapped.undo()
        self._discovering = WeakSet()
        if not self.compiled:
            self._wrapped.wrap(nn.Module, "__call__", self._meeting)

    def settle(self) -> None:
        """Every root has been called."""
        self._wrapped.undo()  # a wrapper that another library has wrapped since stays, and does nothing
        self._discovering = None
        learned = {id(parameter) for parameter in self.parameters()}
        if not self.compiled:
            # What was called may have been made for that call alone, around a model that stays: an ODE solver does so.
            held = {id(parameter) for module in self.roots() for parameter in module.parameters()}
            for module in self._ancestors_of(learned - held):
                self._note(module)
        else:
            for module in self._ancestors_of(learned):
                for call in self._calls():  # blocks that were compiled one by one
                    if call.module() is not module and call.shares_with(module):
                        self._let_go(call)
                self._note(module)
                call = self._roots[module]  # it may be called within a compiled function, where nothing is seen
                call.was_called = call.is_trained = True

    def roots(self) -> list[nn.Module]:
        """The roots that were called so far and still exist."""
        called = [call.module() for call in self._calls() if call.was_called]
        return [module for module in called if module is not None]

    def is_trained(self, module: nn.Module) -> bool:
        """Whether a root was called in training with something to learn."""
        call = self._roots.get(module)
        return call is not None and call.is_trained

    def parameters(self) -> list[torch.Tensor]:
        """What the optimizers that have stepped update."""
        return [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]

    def _ancestors_of(self, parameters: set[int]) -> list[nn.Module]:
        """The outermost modules that hold any of the parameters, by id; not those that are steps."""
        if not parameters:
            return []
        # By type: `isinstance` asks an object for its __class__, at which deprecated stand-ins warn.
        modules: list[nn.Module] = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
        modules = [module for module in modules if not (module in self._roots and self._roots[module].is_step)]
        children = {id(child) for module in modules for child in module.children()}
        return [
            module
            for module in modules
            if id(module) not in children and any(id(p) in parameters for p in module.parameters())
        ]

    def _calls(self) -> list[RootCall]:
        return list(self._roots.values())

    def _meeting(self, original: Forward) -> Forward:
        @functools.wraps(original)
        def __call__(module: nn.Module, /, *arguments: object, **settings: object) -> object:
            seen = self._discovering is not None and self._inside is None and get_ident() == self.thread
            if seen and not self._is_busy():
                self._note(module)
            return original(module, *arguments, **settings)

        return __call__

    def _is_busy(self) -> bool:
        """Whether what is called now is no model's own forward: a transform, or a forward that is computed again."""
        return (self.watcher is not None and self.watcher.waits()) or in_backward()

    def _note(self, module: nn.Module) -> None:
        if module not in self._roots:
            self._roots[module] = call = RootCall(self, module)
            call.put_on()

    def _let_go(self, call: RootCall) -> None:
        call.take_off()
        module = call.module()
        if module is not None:
            self._roots.pop(module, None)

    def _release(self) -> None:
        for call in self._calls():
            self._let_go(call)

    # ------------------------------------------------------------------------------------- calls and steps

    def call(
        self,
        root: RootCall,
        module: nn.Module,
        forward: Forward,
        arguments: tuple[object, ...],
        settings: dict[str, object],
    ) -> object:
        """A root's forward, with everything that is around it."""
        if root.is_step or self._inside is not None or get_ident() != self.thread:
            return forward(*arguments, **settings)
        root.was_called = True
        if module.training and torch.is_grad_enabled():
            root.is_trained = root.is_trained or trains(module)
            if root.is_trained:
                for action in self.model_actions:
                    action.on(module)
        watcher = None if self._is_busy() else self.watcher
        start = self._watched(watcher.enter, module) if watcher is not None else None
        self._inside = root
        output: object = None
        try:
            for around in reversed(self.arounds) if root.is_trained else ():
                forward = functools.partial(_around, around, module, forward)
            output = forward(*arguments, **settings)
            return output
        finally:
            self._inside = None
            if start is not None and watcher is not None:
                self._watched(watcher.leave, module, start, arguments, output)

    def _watched(self, method: Callable[..., Result], *arguments: object) -> Result | None:
        """What a watcher's method returns; a failure ends the watching, not the script."""
        try:
            return method(*arguments)
        except Exception as error:
            self.watcher = None
            warn(f"forwards are no longer measured ({error!r})")
            return None

    def _beginning(self, original: Forward) -> Forward:
        """A second fold, or a fine-tuning after a pretraining, has an optimizer of its own, and a model."""

        @functools.wraps(original)
        def __init__(self_: object, /, *arguments: object, **settings: object) -> object:
            if self._is_wanted and self._discovering is None:
                self.discover()
            return original(self_, *arguments, **settings)

        return __init__

    def _before_step(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        if self._inside is not None and get_ident() == self.thread:
            self._inside.take_for_step()
            self._inside = None
            if self._is_wanted:
                self.discover()
        if self._last_optimizer() is not optimizer:
            self._last_optimizer = ref(optimizer)
            self.optimizers.add(optimizer)
        for action in self.optimizer_actions:
            action.on(optimizer)

    def _after_step(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        if self._discovering is None:
            return
        if optimizer not in self._discovering:
            self._discovering.add(optimizer)
            return
        try:
            self.settle()
        except Exception as error:  # of objects of the script's that are looked at
            warn(f"models cannot be found ({error!r})")

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
            owner = getattr(target, "__self__", None)  # `module.compile()` compiles a method of the module
            target = owner if isinstance(owner, nn.Module) else target
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
        self._wrapped.undo()
        calls = self._calls()
        traced = [call for call in calls if not isinstance(target, nn.Module) or call.shares_with(target)]
        # A copy that is compiled for an export leaves the model that trains as it is.
        self.trains_compiled |= any(c.is_trained for c in traced) or not any(c.is_trained for c in calls)
        for call in traced:
            self._let_go(call)
        if self.trains_compiled:
            for action in self.on_compile:
                action()

    def _as_written(self, original: Forward) -> Forward:
        """TorchScript looks at every attribute of a module."""

        @functools.wraps(original)
        def script(*arguments: object, **settings: object) -> object:
            calls = self._calls()
            for call in calls:
                call.take_off()
            try:
                return original(*arguments, **settings)
            finally:
                for call in calls:
                    call.put_on()

        return script


def _around(around: Around, module: nn.Module, forward: Forward, /, *arguments: object, **settings: object) -> object:
    return around(module, forward, arguments, settings)
