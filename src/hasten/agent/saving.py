"""Spans around the functions of torch and the frameworks that save checkpoints.

Where files are written is decided by the sandbox. What a tracker would send to a server is not sent.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from hasten.agent.marks import Marks, spanned
from hasten.patches import Patches

Function = Callable[..., object]

# Method or function, by module.
SAVERS = {
    "safetensors.torch": ("save_file", "save_model"),
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint",),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint",),
    "transformers.trainer": ("Trainer._save_checkpoint", "Trainer.save_model"),
    "accelerate.accelerator": ("Accelerator.save_state",),
}

_saving = True


def save_nothing(wanted: bool) -> None:
    """Have savers return at once from now on, or save again."""
    global _saving
    _saving = not wanted


def install(marks: Marks, patches: Patches) -> None:
    """Follow what is saved from now on."""

    def following(function: Function) -> Function:
        return spanned(marks, "checkpoint", _at_will(function), always=True)

    patches.wrap(torch, "save", following)
    for module, names in SAVERS.items():

        def follow(found: ModuleType, names: tuple[str, ...] = names) -> None:
            for name in names:
                owner, _, method = name.rpartition(".")
                patches.wrap(getattr(found, owner) if owner else found, method, following)

        patches.after_import(module, follow)


def log_to(folder: Path, patches: Patches) -> None:
    """Have a tracker that may log to a server log into a folder."""
    patches.after_import("mlflow", lambda module: module.set_tracking_uri(f"file://{os.fspath(folder / 'mlflow')}"))


def rename_as_on_one_disk(patches: Patches) -> None:
    """In a private view of the file system some folders count as other disks, and a rename would fail: copy instead."""

    def renaming(original: Function) -> Function:
        @functools.wraps(original)
        def rename(src: str, dst: str, **settings: object) -> None:
            try:
                original(src, dst, **settings)
            except OSError as error:
                if error.errno != errno.EXDEV or settings:
                    raise
                if os.path.isdir(src) and not os.path.islink(src):
                    if os.path.isdir(dst):
                        os.rmdir(dst)  # raises where it is not empty, as a rename does
                    shutil.copytree(src, dst, symlinks=True)
                    shutil.rmtree(src)
                else:
                    shutil.copy2(src, dst, follow_symlinks=False)
                    os.unlink(src)

        return rename

    for name in ("rename", "replace"):
        patches.wrap(os, name, renaming)


def _at_will(function: Function) -> Function:
    @functools.wraps(function)
    def save(*arguments: object, **settings: object) -> object:
        return function(*arguments, **settings) if _saving else None

    return save
