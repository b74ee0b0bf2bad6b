"""Mark what a step reads back from the device, copies to it, and logs; in instrumented segments only."""

from __future__ import annotations

import builtins
import functools
import logging
from collections.abc import Callable
from types import ModuleType

import torch

from hasten.agent.frames import caller_is_user
from hasten.agent.marks import Marks, spanned
from hasten.devices import accelerator
from hasten.patches import Patches
from hasten.raw_run import Copy, Sync

Function = Callable[..., object]

SYNC_POINTS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "cpu": ".cpu()",
    "__float__": "float(tensor)",
    "__int__": "int(tensor)",
    "__bool__": "bool(tensor)",
    "__repr__": "printing a tensor",
    "__format__": "formatting a tensor",
}


def install(marks: Marks, patches: Patches) -> None:
    """Put every hook on."""
    if accelerator.built_for() is not None:
        _hook_copies(marks, patches)
    for name, label in SYNC_POINTS.items():
        patches.wrap(torch.Tensor, name, functools.partial(_sync, marks, label))
    _hook_logging(marks, patches)


def _hook_copies(marks: Marks, patches: Patches) -> None:
    def make(original: Function) -> Function:
        @functools.wraps(original)
        def move(self: torch.Tensor, *arguments: object, **settings: object) -> object:
            if not marks.full or self.device.type != "cpu" or not marks.here():
                return original(self, *arguments, **settings)
            start = marks.now()
            clock = marks.device
            if clock is not None:
                clock.enter()
            marks.reading = True
            try:
                result = original(self, *arguments, **settings)
            finally:
                marks.reading = False
                if clock is not None:
                    clock.leave("copy", start)
            if isinstance(result, torch.Tensor) and result.device.type != "cpu":
                waits = not (settings.get("non_blocking", False) or True in arguments[1:2])
                size = self.numel() * self.element_size()
                marks.add("copy", start, Copy(marks.place(1), size, self.is_pinned(), waits, str(self.dtype)))
            return result

        return move

    for name in ("to", str(accelerator.built_for())):
        if hasattr(torch.Tensor, name):  # there is no Tensor.mps
            patches.wrap(torch.Tensor, name, make)


def _sync(marks: Marks, label: str, original: Function) -> Function:
    @functools.wraps(original)
    def call(*arguments: object, **settings: object) -> object:
        # Optimizers and frameworks read scalars of their own; only the user's own lines are theirs to fix.
        if not marks.full or not caller_is_user(1) or not marks.here():
            return original(*arguments, **settings)
        start, outer = marks.now(), marks.reading
        marks.reading = True
        try:
            result = original(*arguments, **settings)
        finally:
            marks.reading = outer
        marks.add("sync", start, Sync(marks.place(1), label))
        return result

    return call


def _hook_logging(marks: Marks, patches: Patches) -> None:
    def logged(function: Function) -> Function:
        # depth: place() <- detail() <- spanned's call <- the user
        return spanned(marks, "logging", function, detail=lambda: marks.place(2))

    patches.wrap(builtins, "print", logged)
    patches.wrap(logging.Logger, "handle", logged)

    def writer(module: ModuleType) -> None:
        kind = module.SummaryWriter
        for name in [name for name in vars(kind) if name.startswith("add_")] + ["flush"]:
            patches.wrap(kind, name, logged)

    patches.after_import("torch.utils.tensorboard.writer", writer)
    patches.after_import("tensorboardX.writer", writer)
    patches.after_import("tqdm.std", lambda module: patches.wrap(module.tqdm, "refresh", logged))
    patches.after_import("wandb", lambda module: patches.wrap(module, "log", logged))
    patches.after_import("mlflow", lambda module: patches.wrap(module, "log_metrics", logged))
    patches.after_import("matplotlib.figure", lambda module: patches.wrap(module.Figure, "savefig", logged))
