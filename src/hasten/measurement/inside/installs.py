"""What-ifs that must be in place before the script begins: loaders made otherwise, profilers kept off.

In: a name, `name=value`. Out: torch patched before the script's first line runs. Refuses to measure.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader

from hasten.measurement.inside.patches import Patches

Function = Callable[..., object]


def install(name: str, patches: Patches) -> None:
    """Install the what-if of this name. Raises KeyError for an unknown one."""
    name, _, value = name.partition("=")
    INSTALLERS[name](patches, value)


def _loader_settings(patches: Patches, **wanted: object) -> None:
    def make(original: Function) -> Function:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def start(*arguments: object, **settings: object) -> None:
            bound = signature.bind(*arguments, **settings)
            changed = {**bound.arguments, **wanted}
            if not changed.get("num_workers"):
                # What only workers can have is refused without them.
                for name in ("prefetch_factor", "persistent_workers"):
                    if name in wanted:
                        changed.pop(name, None)
            loader = changed.pop("self")
            original(loader, **changed)

        return start

    patches.wrap(DataLoader, "__init__", make)


def _workers(patches: Patches, value: str) -> None:
    number = int(value)
    if number:
        _loader_settings(patches, num_workers=number)
    else:
        _loader_settings(patches, num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)


def _prefetch(patches: Patches, value: str) -> None:
    _loader_settings(patches, prefetch_factor=int(value))


def _persistent(patches: Patches, _value: str) -> None:
    _loader_settings(patches, persistent_workers=True)


def _no_profiler(patches: Patches, _value: str) -> None:
    def nothing(_original: Function) -> Function:
        def itself(self: object, *_arguments: object, **_settings: object) -> object:
            return self

        return itself

    for kind in (torch.autograd.profiler.profile, torch.autograd.profiler.emit_nvtx, torch.profiler.profile):
        for name in ("__enter__", "__exit__", "start", "stop", "step"):
            if name in vars(kind) or name in ("__enter__", "__exit__"):
                patches.wrap(kind, name, _exits if name == "__exit__" else nothing)


def _exits(_original: Function) -> Function:
    def leave(_self: object, *_arguments: object) -> None:
        """The with block ends, and nothing was ever on."""

    return leave


def _no_validation_grad(patches: Patches, _value: str) -> None:
    found: set[int] = set()
    open_in: list[int] = []

    def enter(module: nn.Module, _arguments: object) -> None:
        if not module.training and not open_in and torch.is_grad_enabled():
            open_in.append(id(module))
            torch.set_grad_enabled(False)

    def leave(module: nn.Module, _arguments: object, _output: object) -> None:
        if open_in and open_in[-1] == id(module):
            open_in.pop()
            torch.set_grad_enabled(True)

    def look(module: nn.Module, arguments: object) -> None:
        if module.training:
            if found:
                looking.remove()  # a hook on every module would cost more than it shows
            return
        if not open_in and torch.is_grad_enabled() and id(module) not in found:
            found.add(id(module))
            patches.on_undo(module.register_forward_pre_hook(enter).remove)
            patches.on_undo(module.register_forward_hook(leave, always_call=True).remove)
            enter(module, arguments)  # its own hook comes too late for this call

    looking = register_module_forward_pre_hook(look)
    patches.on_undo(looking.remove)


INSTALLERS: dict[str, Callable[[Patches, str], None]] = {
    "num_workers": _workers,
    "prefetch_factor": _prefetch,
    "persistent_workers": _persistent,
    "no_profiler": _no_profiler,
    "no_validation_grad": _no_validation_grad,
}
