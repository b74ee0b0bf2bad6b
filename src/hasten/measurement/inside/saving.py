"""Keep a measured run from writing checkpoints and from logging to trackers, while the cost of both stays real.

In: the saving functions of torch and the frameworks. Out: `checkpoint` spans; the files lie in a scratch folder that
the parent removes. Refuses to touch anything but savers: what else a script writes is its own affair.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from hasten.measurement.inside.marks import Marks, spanned
from hasten.measurement.inside.patches import Patches

Function = Callable[..., object]


_saving = True


def save_nothing(wanted: bool) -> None:
    """Have torch.save return at once from now on, or save again."""
    global _saving
    _saving = not wanted


def install(folder: Path, marks: Marks, patches: Patches) -> None:
    """Redirect what is saved from now on."""
    moved: dict[str, str] = {}

    def target(path: object) -> object:
        if not isinstance(path, (str, os.PathLike)):
            return path
        name = os.path.abspath(os.fspath(path))
        if name not in moved:
            folder.mkdir(parents=True, exist_ok=True)
            moved[name] = os.fspath(folder / f"{os.getpid()}-{len(moved)}-{Path(name).name}")
        return moved[name]

    def saving(function: Function, position: int, keyword: str) -> Function:
        return spanned(marks, "checkpoint", _redirected(function, position, keyword, target), always=True)

    def loading(original: Function) -> Function:
        @functools.wraps(original)
        def load(f: object, *arguments: object, **settings: object) -> object:
            # A script may load at once what it has just saved.
            if isinstance(f, (str, os.PathLike)):
                f = moved.get(os.path.abspath(os.fspath(f)), f)
            return original(f, *arguments, **settings)

        return load

    patches.wrap(torch, "save", lambda f: saving(f, 1, "f"))
    patches.wrap(torch, "load", loading)
    _follow_moved(moved, target, patches)

    def safetensors(module: ModuleType) -> None:
        patches.wrap(module, "save_file", lambda f: saving(f, 1, "filename"))
        patches.wrap(module, "save_model", lambda f: saving(f, 1, "filename"))

    patches.after_import("safetensors.torch", safetensors)
    _redirect_frameworks(folder, marks, patches, target)


def _follow_moved(moved: dict[str, str], target: Callable[[object], object], patches: Patches) -> None:
    """Let the script find, copy and remove what it believes to have saved."""

    def there(path: object) -> object:
        if not moved or not isinstance(path, (str, os.PathLike)):
            return path
        return moved.get(os.path.abspath(os.fspath(path)), path)

    def finding(original: Function) -> Function:
        @functools.wraps(original)
        def find(*arguments: object, **settings: object) -> object:
            if moved and arguments:
                arguments = (there(arguments[0]), *arguments[1:])
            elif moved:
                settings = {name: there(value) for name, value in settings.items()}
            return original(*arguments, **settings)

        return find

    def copying(original: Function) -> Function:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def copy(*arguments: object, **settings: object) -> object:
            if not moved:
                return original(*arguments, **settings)
            try:
                given = signature.bind(*arguments, **settings)
            except TypeError:
                return original(*arguments, **settings)  # whose message is the script's own
            source, copied = given.arguments["src"], given.arguments["dst"]
            if there(source) is source:
                return original(*arguments, **settings)
            if isinstance(copied, (str, os.PathLike)) and os.path.isdir(copied):
                copied = os.path.join(copied, os.path.basename(os.fspath(source)))
            # A copy of a checkpoint is a checkpoint.
            given.arguments.update(src=there(source), dst=target(copied))
            return original(*given.args, **given.kwargs)

        return copy

    for module, names in ((os, ("stat", "remove", "unlink")), (os.path, ("getsize",))):
        for name in names:
            patches.wrap(module, name, finding)
    for module, names in ((os, ("replace", "rename")), (shutil, ("copyfile", "copy", "copy2", "move"))):
        for name in names:
            patches.wrap(module, name, copying)


def _redirected(function: Function, position: int, keyword: str, target: Callable[[object], object]) -> Function:
    @functools.wraps(function)
    def save(*arguments: object, **settings: object) -> object:
        if not _saving:
            return None
        if keyword in settings:
            settings[keyword] = target(settings[keyword])
        elif len(arguments) > position:
            arguments = (*arguments[:position], target(arguments[position]), *arguments[position + 1 :])
        return function(*arguments, **settings)

    return save


def _redirect_frameworks(folder: Path, marks: Marks, patches: Patches, target: Callable[[object], object]) -> None:
    def lightning(module: ModuleType) -> None:
        def make(original: Function) -> Function:
            moved = _redirected(original, 1, "filepath", target)
            return spanned(marks, "checkpoint", moved, always=True)

        patches.wrap(module.Trainer, "save_checkpoint", make)

    for name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
        patches.after_import(name, lightning)

    def hugging_face(module: ModuleType) -> None:
        def make(original: Function) -> Function:
            @functools.wraps(original)
            def save(self: object, *arguments: object, **settings: object) -> object:
                options = self.args  # type: ignore[attr-defined]
                before = options.output_dir
                options.output_dir = os.fspath(folder / f"trainer-{os.getpid()}")
                try:
                    return original(self, *arguments, **settings)
                finally:
                    options.output_dir = before

            return spanned(marks, "checkpoint", save, always=True)

        patches.wrap(module.Trainer, "_save_checkpoint", make)
        patches.wrap(module.Trainer, "save_model", make)

    patches.after_import("transformers.trainer", hugging_face)

    def accelerate(module: ModuleType) -> None:
        def make(original: Function) -> Function:
            moved = _redirected(original, 1, "output_dir", target)
            return spanned(marks, "checkpoint", moved, always=True)

        patches.wrap(module.Accelerator, "save_state", make)

    patches.after_import("accelerate.accelerator", accelerate)

    def board(module: ModuleType) -> None:
        def make(original: Function) -> Function:
            @functools.wraps(original)
            def start(self: object, *arguments: object, **settings: object) -> object:
                place = os.fspath(folder / "board")
                named = [name for name in ("log_dir", "logdir") if name in settings]
                if named:
                    return original(self, *arguments, **{**settings, named[0]: place})
                return original(self, place, *arguments[1:], **settings)

            return start

        patches.wrap(module.SummaryWriter, "__init__", make)

    for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        patches.after_import(name, board)
    patches.after_import("mlflow", lambda module: module.set_tracking_uri(f"file://{os.fspath(folder / 'mlflow')}"))
