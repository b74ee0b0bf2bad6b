"""The forward of the outermost modules, and of nothing inside them.

In: modules as they are called. Out: `forward` spans. Refuses to hook every module for longer than the first step:
a hook on all 430 modules of a DenseNet-121 costs 0.8 ms a step, one on the root nothing that can be measured.

While discovering, one global hook notes which modules are called from outside any other. Afterwards only those
carry hooks, and in the time of record only those of them that evaluate. A script that compiles is never given a global hook (it would be traced into the graph): there the
roots are the modules that are nobody's child and hold a parameter that an optimizer updates.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from threading import get_ident
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from hasten.agent.patches import Patches
from hasten.devices import accelerator
from hasten.measurement.inside.marks import Marks
from hasten.measurement.inside.nests import tensors_in
from hasten.raw_run import AUTOCAST, GRAD, OUTPUT_GRAD, TRAINING, Forward

_DEVICES = {"cpu", accelerator.built_for() or "cpu"}

_marks: Marks | None = None  # module level, so that a model saved whole names its hooks and does not hold a run
_stack: list[tuple[int, float | None]] = []
_roots: dict[int, ref[nn.Module]] = {}
_shapes: set[tuple[int, ...]] = set()
_teachers: set[int] = set()  # roots that also run without gradients while in training mode


def enter_forward(module: nn.Module, *_arguments: object) -> None:
    """Open a span if this is the outermost module."""
    marks = _marks
    # Transforms are modules too: with no workers they run here, while a batch is waited for.
    if marks is None or get_ident() != marks.thread or "data_wait" in marks.open:
        return
    if _stack:
        _stack.append((id(module), None))
        return
    # Validation is marked in the time of record too: its forwards are few, and without them it cannot be told.
    wanted = marks.full or not module.training or not torch.is_grad_enabled()
    if module.training and not torch.is_grad_enabled():
        _teachers.add(id(module))
    _note(module)
    _stack.append((id(module), marks.enter("forward") if wanted else None))


def _note(module: nn.Module) -> None:
    known = _roots.get(id(module))
    if known is None or known() is None:  # the number of a module that is gone may be given again
        _roots[id(module)] = ref(module)


def leave_forward(module: nn.Module, arguments: tuple[object, ...], output: object) -> None:
    """Close the span that `enter_forward` opened for this module."""
    marks = _marks
    if marks is None or not _stack or get_ident() != marks.thread or _stack[-1][0] != id(module):
        return
    _, start = _stack.pop()
    if start is None:
        return
    inputs = next(tensors_in(arguments, most=1), None)
    shape = tuple(inputs.shape) if inputs is not None else ()
    flags = TRAINING * module.training + GRAD * torch.is_grad_enabled()
    flags += AUTOCAST * any(map(torch.is_autocast_enabled, _DEVICES))
    if not flags & TRAINING:
        flags += OUTPUT_GRAD * any(tensor.requires_grad for tensor in tensors_in(output, most=4))
    if len(_shapes) < 1000:
        _shapes.add(shape)
    marks.between = "loss" if flags & TRAINING and flags & GRAD else "validation"
    marks.leave("forward", start, Forward(id(module), flags, shape[0] if shape else None))
    marks.remember_place("forward" if flags & TRAINING else "validation", 1)


class Roots:
    """Finds the root modules and keeps hooks on them."""

    def __init__(self, marks: Marks, patches: Patches) -> None:
        global _marks
        _marks = marks
        self._patches = patches
        self._hooks: WeakKeyDictionary[nn.Module, list[Callable[[], None]]] = WeakKeyDictionary()  # to take them off
        self._global: list[Callable[[], None]] = []
        self.compiled = False
        patches.on_undo(self._forget)
        patches.wrap(torch, "compile", self._noting_compile)
        patches.wrap(nn.Module, "compile", self._noting_compile)
        patches.wrap(nn.Module, "eval", self._noting_eval)

    def _noting_compile(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def compile(*arguments: object, **settings: object) -> object:
            self.compiled = True
            self.stop_discovering()
            return original(*arguments, **settings)

        return compile

    def _noting_eval(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def eval(module: nn.Module) -> object:
            result = original(module)
            if _marks is not None and not _marks.full and _marks.here():
                self.listen(full=False)
            return result

        return eval

    def discover(self) -> None:
        """Watch every module, until `settle`."""
        if self.compiled or self._global:
            return
        before = register_module_forward_pre_hook(enter_forward)
        after = register_module_forward_hook(leave_forward, always_call=True)
        self._global = [before.remove, after.remove]

    def stop_discovering(self) -> None:
        """Take the global hooks off."""
        for remove in self._global:
            remove()
        self._global = []

    def settle(self, parameters: Iterable[torch.Tensor]) -> None:
        """Leave hooks on the roots only. `parameters` are those that optimizers update."""
        self.stop_discovering()
        if self.compiled:
            for module in _ancestors_of({id(parameter) for parameter in parameters}):
                _note(module)
        for module in self.modules():
            if module not in self._hooks:
                self._hook(module)

    def listen(self, *, full: bool) -> None:
        """Every step's forward is marked from now on, or only those of a validation."""
        if self.compiled:
            return  # the hooks are part of what was compiled
        for module in self.modules():
            hooks = self._hooks.get(module)
            if hooks is None:
                continue
            wanted = full or not module.training or id(module) in _teachers
            if wanted and not hooks:
                self._hook(module)
            elif not wanted and not _stack:  # a forward that has begun is also to be ended
                while hooks:
                    hooks.pop()()

    def _hook(self, module: nn.Module) -> None:
        if module._compiled_call_impl is not None:  # pyright: ignore[reportPrivateUsage]
            self._patches.set(module, "_compiled_call_impl", _around_compiled(module))
            self._hooks[module] = []
            return
        before = module.register_forward_pre_hook(enter_forward, prepend=True)
        after = module.register_forward_hook(leave_forward, always_call=True)
        self._hooks[module] = [before.remove, after.remove]

    def modules(self) -> list[nn.Module]:
        """The roots found so far that still exist."""
        return [module for module in (reference() for reference in _roots.values()) if module is not None]

    def num_shapes(self) -> int:
        """How many different input shapes the roots were given."""
        return len(_shapes)

    def _forget(self) -> None:
        global _marks
        self.stop_discovering()
        _marks = None
        for hooks in self._hooks.values():
            while hooks:
                hooks.pop()()
        for held in (_stack, _roots, _shapes, _teachers):
            held.clear()


def _around_compiled(module: nn.Module) -> Callable[..., object]:
    # module.compile() traces the module's hooks into the graph; what it put on the instance is wrapped instead.
    compiled = module._compiled_call_impl  # pyright: ignore[reportPrivateUsage]
    assert compiled is not None

    def call(*arguments: object, **settings: object) -> object:
        enter_forward(module)
        output: object = None
        try:
            output = compiled(*arguments, **settings)
            return output
        finally:
            leave_forward(module, arguments, output)

    return call


def _ancestors_of(parameters: set[int]) -> list[nn.Module]:
    # By type: `isinstance` asks an object for its __class__, at which deprecated stand-ins warn.
    modules: list[nn.Module] = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
    children = {id(child) for module in modules for child in module.children()}
    return [
        module
        for module in modules
        if id(module) not in children and any(id(p) in parameters for p in module.parameters())
    ]
