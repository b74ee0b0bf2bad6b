"""The training process as fixes see it: its models before their first forward, its optimizers before their first step.

In: installers by name, with their settings. Out: each is on, or says why not. Refuses to know what they do.

Models are met where they are called: the outermost module with trainable parameters that is called in training. Its
class's `forward` is wrapped, and the wrapper acts on that one object alone, so nothing of ours hangs on the model
itself: what the script pickles, copies and saves is what it would be without hasten.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from threading import get_ident
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hasten.agent.patches import Patches, warn
from hasten.protocol import FixSpec

Forward = Callable[..., object]
Around = Callable[[nn.Module, Forward, tuple[object, ...], dict[str, object]], object]


class NotApplicableError(Exception):
    """A fix cannot be put on here; the message says why."""


class Site:
    """One process, and the fixes that are on in it.

    Args:
        patches: what takes the fixes off again.
        hooks: what takes the site's own step hooks off; `patches` by default. Fixes can be taken off from within a step
            hook, step hooks cannot: torch iterates over them.
        on_change: is given the state of every fix once one of them is refused.
    """

    def __init__(
        self,
        patches: Patches,
        *,
        hooks: Patches | None = None,
        on_change: Callable[[dict[str, str]], object] = lambda _: None,
    ) -> None:
        self.patches = patches
        self.thread = get_ident()
        self._on_change = on_change
        self._begin()
        for handle in (
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            (hooks or patches).on_undo(handle.remove)

    def _begin(self) -> None:
        self.states: dict[str, str] = {}  # of each fix: "on", or why it is not
        self._models = _Models(self)
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._on_optimizer: list[tuple[str, Callable[[Optimizer], object]]] = []
        self._stepping = False  # an optimizer step has begun since a fix was installed

    def take_off(self) -> None:
        """Take every fix off; others, or the same, can be installed again."""
        self.patches.undo()
        self._begin()

    def install(self, fix: FixSpec) -> None:
        """Put a fix on."""
        self.states[fix.name] = "on"
        try:
            pkgutil.resolve_name(fix.installer)(self, fix.name, fix.value)
        except NotApplicableError as error:
            self.refuse(fix.name, str(error))
        except Exception as error:
            self.refuse(fix.name, f"it failed: {error!r}")

    def refuse(self, fix: str, reason: str) -> None:
        """Say that a fix is not on."""
        if self.states.get(fix) == "on":
            self.states[fix] = reason
            self._on_change(self.states)

    def around_forward(self, fix: str, around: Around) -> None:
        """Have the roots' forward called as `around(module, forward, arguments, settings)`; the first given is outermost."""
        self._models.arounds.append((fix, around))
        self._models.discover()

    def on_model(self, fix: str, action: Callable[[nn.Module], object]) -> None:
        """Have `action(root)` called once for each root, before its first training forward."""
        self._models.actions.append((fix, action))
        self._models.discover()

    def on_inner_forward(self, fix: str, change: Callable[[Forward], Forward]) -> None:
        """Have a root's own forward replaced by `change(forward)`, inside everything that is around it."""
        self._models.changes.append((fix, change))
        self._models.discover()

    def compiled(self, forward: Forward, *, mode: str) -> Forward:
        """The forward compiled, not taken for the script's own compiling."""
        self._models.compiling = True
        try:
            return torch.compile(forward, mode=mode)
        finally:
            self._models.compiling = False

    def on_optimizer(self, fix: str, action: Callable[[Optimizer], object]) -> None:
        """Have `action(optimizer)` called once for each optimizer, before its first step."""
        self._on_optimizer.append((fix, action))

    def _after_step(self, _optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        # A fix may have been installed within this very step: the models are yet to be called.
        if self._stepping:
            self._models.settle()

    def _before_step(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        self._stepping = bool(self.states)
        if not self._on_optimizer or optimizer in self._optimizers:
            return
        self._optimizers.add(optimizer)
        for fix, action in self._on_optimizer:
            self.attempt(fix, lambda action=action: action(optimizer))

    def attempt(self, fix: str, action: Callable[[], object]) -> None:
        """Do something for a fix; a failure takes the fix off, not the script."""
        if self.states.get(fix, "on") != "on":
            return
        try:
            action()
        except NotApplicableError as error:
            self.refuse(fix, str(error))
        except Exception as error:
            self.refuse(fix, f"it failed: {error!r}")
            warn(f"{fix} could not be applied ({error!r}); training goes on without it")


class _Models:
    """The roots of a site: outermost modules that train."""

    def __init__(self, site: Site) -> None:
        self.arounds: list[tuple[str, Around]] = []
        self.actions: list[tuple[str, Callable[[nn.Module], object]]] = []
        self.changes: list[tuple[str, Callable[[Forward], Forward]]] = []
        self.compiling = False  # by a fix
        self._site = site
        self._roots: dict[int, _Root] = {}
        self._originals: dict[type[nn.Module], Forward] = {}
        self._depth = 0
        self._discovering: Patches | None = None

    def discover(self) -> None:
        """Meet every module that is called, until an optimizer step has ended; and again from each new optimizer on."""
        if self._discovering is not None:
            return
        patches = self._discovering = Patches()
        self._site.patches.on_undo(patches.undo)
        self._meet(patches)
        self._site.patches.wrap(torch.jit, "script", self._as_written)
        self._site.patches.wrap(Optimizer, "__init__", self._beginning)

    def _meet(self, patches: Patches) -> None:
        patches.undo()  # it may be on already
        patches.wrap(nn.Module, "__call__", self._meeting)
        patches.wrap(torch, "compile", self._giving_up)
        patches.wrap(nn.Module, "compile", self._giving_up)

    def _beginning(self, original: Callable[..., object]) -> Callable[..., object]:
        """A second fold, or a fine-tuning after a pretraining, has an optimizer of its own, and a model."""

        @functools.wraps(original)
        def __init__(*arguments: object, **settings: object) -> object:
            if self._discovering is not None:
                self._meet(self._discovering)
            return original(*arguments, **settings)

        return __init__

    def settle(self) -> None:
        """An optimizer step has ended: every root has been met."""
        if self._discovering is not None:
            self._discovering.undo()

    def _giving_up(self, original: Callable[..., object]) -> Callable[..., object]:
        """A script that compiles is left alone: what is round its forward would be traced, and compiled again."""

        @functools.wraps(original)
        def compile(*arguments: object, **settings: object) -> object:
            if not self.compiling and self._discovering is not None:
                self._discovering.undo()
                for fix, _ in (*self.actions, *self.arounds, *self.changes):
                    self._site.refuse(fix, "the script compiles its model itself")
            return original(*arguments, **settings)

        return compile

    def _meeting(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def __call__(module: nn.Module, *arguments: object, **settings: object) -> object:
            if self._depth or get_ident() != self._site.thread:
                return original(module, *arguments, **settings)
            if module.training and torch.is_grad_enabled() and id(module) not in self._roots and _trains(module):
                self._found(module)
            self._depth += 1
            try:
                return original(module, *arguments, **settings)
            finally:
                self._depth -= 1

        return __call__

    def _found(self, module: nn.Module) -> None:
        self._roots[id(module)] = ref(module), None, _no_forward
        for fix, action in self.actions:
            self._site.attempt(fix, lambda action=action: action(module))
        if not self.arounds and not self.changes:
            return
        try:
            self._take_over(module)
        except Exception as error:
            for fix, _ in (*self.arounds, *self.changes):
                self._site.refuse(fix, f"the forward of {type(module).__name__} cannot be replaced ({error!r})")

    def _take_over(self, module: nn.Module) -> None:
        """Have the module's forward go through what the fixes put around it."""
        own_forward = vars(module).get("forward")  # some frameworks put one on the object itself
        if own_forward is not None:
            self._site.patches.set(module, "forward", self._wrapped(module, own_forward))
            return
        kind = type(module)
        original = self._originals.get(kind)
        if original is None:
            original = self._originals[kind] = kind.forward
            self._site.patches.set(kind, "forward", self._dispatching(kind, original))
        call = self._wrapped(module, functools.partial(_method, ref(module), original))
        self._roots[id(module)] = ref(module), kind, call

    def _wrapped(self, module: nn.Module, forward: Forward) -> Forward:
        call = forward
        for fix, change in self.changes:
            changed: list[Forward] = []
            self._site.attempt(fix, lambda change=change, call=call, into=changed: into.append(change(call)))
            call = changed[0] if changed else call
        call = functools.partial(self._inside, call)
        for fix, around in reversed(self.arounds):
            call = functools.partial(self._around, fix, around, ref(module), call)
        return call

    def _inside(self, call: Forward, *arguments: object, **settings: object) -> object:
        """A root's forward, which a fix may call again in backward: what it calls is no root there either."""
        self._depth += 1
        try:
            return call(*arguments, **settings)
        finally:
            self._depth -= 1

    def _around(
        self, fix: str, around: Around, module: ref[nn.Module], call: Forward, *arguments: object, **settings: object
    ) -> object:
        target = module()
        if target is None or self._site.states.get(fix, "on") != "on":
            return call(*arguments, **settings)
        return around(target, call, arguments, settings)

    def _dispatching(self, kind: type[nn.Module], original: Forward) -> Forward:
        roots = self._roots

        @functools.wraps(original)
        def forward(self: nn.Module, *arguments: object, **settings: object) -> object:
            reference, of, call = roots.get(id(self), _NOBODY)
            # A class has other objects, and the number of one that is gone is given again; a root's own class may
            # call the forward of a class that has roots of its own; and what is exported is the script's.
            if reference() is not self or of is not kind or _is_exported():
                return original(self, *arguments, **settings)
            return call(*arguments, **settings)

        return forward

    def _as_written(self, original: Callable[..., object]) -> Callable[..., object]:
        """TorchScript reads a forward's source, and must not find ours."""

        @functools.wraps(original)
        def script(*arguments: object, **settings: object) -> object:
            ours = {kind: kind.forward for kind in self._originals}
            try:
                for kind, forward in self._originals.items():
                    kind.forward = forward
                return original(*arguments, **settings)
            finally:
                for kind, forward in ours.items():
                    kind.forward = forward

        return script


def _no_forward(*_arguments: object, **_settings: object) -> object:
    raise AssertionError("a root without a forward of ours is not dispatched")


_Root = tuple[
    Callable[[], nn.Module | None], type[nn.Module] | None, Forward
]  # whose, dispatched by which class, how
_NOBODY: _Root = (lambda: None), None, _no_forward


def _is_exported() -> bool:
    return torch.jit.is_tracing() or torch.compiler.is_compiling()  # pyright: ignore[reportPrivateImportUsage]


def _method(module: ref[nn.Module], function: Forward, *arguments: object, **settings: object) -> object:
    return function(module(), *arguments, **settings)


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
