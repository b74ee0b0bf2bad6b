"""Loaders made with other settings: more workers, a deeper queue, workers that stay, pinned memory.

In: a site and a value. Out: every DataLoader made from now on has it. Refuses settings that torch would refuse.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import multiprocessing
import random
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
    _MultiProcessingDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)
from torch.utils.weak import WeakIdKeyDictionary

from hasten.agent.handle import Handle, NotApplicableError
from hasten.agent.models import Models
from hasten.agent.nests import tensors_in
from hasten.devices import accelerator
from hasten.fixes.inside.changing import state_of
from hasten.protocol import Value

Given = dict[str, object]
Made = Callable[[Any], object] | None
Function = Callable[..., object]


def num_workers(handle: Handle, value: Value) -> None:
    """So many worker processes make batches; 0: the training process does."""
    number = int(value)
    if number and not _may_start_processes():
        raise NotApplicableError('the script has no `if __name__ == "__main__":`, which workers need on this system')

    def change(given: Given) -> None:
        if isinstance(given.get("dataset"), IterableDataset):
            return  # how its samples are divided among workers is its own affair
        given["num_workers"] = number
        if not number:
            given.update(prefetch_factor=None, persistent_workers=False, timeout=0, multiprocessing_context=None)

    change_loaders(handle, change)


def prefetch_factor(handle: Handle, value: Value) -> None:
    """So many batches lie ready for each worker."""

    def change(given: Given) -> None:
        if given.get("num_workers"):
            given["prefetch_factor"] = int(value)

    change_loaders(handle, change)


class _Begun(worker._ResumeIteration):  # pyright: ignore[reportPrivateUsage, reportUntypedBaseClass]
    """Tells a worker that stays that an epoch begins, and what seed a new one would have; None: it keeps its own."""

    next_seed: int | None = None  # of the epoch that is about to begin in this process

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        object.__setattr__(self, "base_seed", _Begun.next_seed)

    def __reduce__(self) -> tuple[object, ...]:
        return _begun, (self.seed, vars(self)["base_seed"])


def _begun(seed: int | None, base_seed: int | None) -> _Begun:
    """In a worker: draw from now on what a new one would draw."""
    info = get_worker_info()
    if info is not None and base_seed is not None:
        import numpy as np

        random.seed(base_seed + info.id)
        torch.manual_seed(base_seed + info.id)
        np.random.seed(worker._generate_state(base_seed, info.id))  # pyright: ignore[reportPrivateUsage]
        object.__setattr__(info, "seed", base_seed + info.id)
    return _Begun(seed)


def persistent_workers(handle: Handle, _value: Value) -> None:
    """Workers stay from one epoch to the next, and are seeded for each as new ones would be: samples are the same."""

    kept: WeakSet[DataLoader[object]] = WeakSet()
    seen: WeakKeyDictionary[DataLoader[object], object] = WeakKeyDictionary()

    def change(given: Given) -> Made:
        if not given.get("num_workers") or given.get("persistent_workers") or given.get("worker_init_fn") is not None:
            return None  # what a worker does as it begins, it is to do in each epoch
        given["persistent_workers"] = True
        return kept.add

    def iterating(original: Function) -> Function:
        @functools.wraps(original)
        def __iter__(self: DataLoader[object]) -> object:
            if self in kept:
                # Workers that stay have the dataset as it was: one that the script has changed since needs others.
                now = state_of(self.dataset)
                if seen.get(self, now) != now:
                    self._iterator = None  # pyright: ignore[reportPrivateUsage]
                seen[self] = now
            return original(self)

        return __iter__

    def resetting(original: Function) -> Function:
        @functools.wraps(original)
        def _reset(self: Any, loader: DataLoader[object], first_iter: bool = False) -> object:
            _Begun.next_seed = None
            if loader in kept and not first_iter:  # as where an iterator is made
                drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
                _Begun.next_seed = self._base_seed = int(drawn)
            return original(self, loader, first_iter)

        return _reset

    change_loaders(handle, change)
    handle.patches.wrap(DataLoader, "__iter__", iterating)
    handle.patches.wrap(_MultiProcessingDataLoaderIter, "_reset", resetting)
    handle.patches.set(worker, "_ResumeIteration", _Begun)


def pin_memory(handle: Handle, _value: Value) -> None:
    """Batches lie in pinned memory, from which a GPU copies faster and by itself."""
    if not accelerator.is_available():
        raise NotApplicableError("there is no device to copy to")
    change_loaders(handle, lambda given: given.update(pin_memory=True))


def non_blocking(handle: Handle, _value: Value) -> None:
    """Copies of a loader's pinned batches to the GPU do not make the host wait; the script's own buffers do."""
    if not accelerator.is_available():
        raise NotApplicableError("there is no device to copy to")

    handed_out: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()

    def marking(original: Function) -> Function:
        @functools.wraps(original)
        def __next__(self: object) -> object:
            batch = original(self)
            handed_out.update((tensor, True) for tensor in tensors_in(batch, most=64))
            return batch

        return __next__

    def without_waiting(original: Function) -> Function:
        @functools.wraps(original)
        def copy(self: torch.Tensor, *arguments: object, **settings: object) -> object:
            # A buffer of the script's own may be filled again while a copy is under way.
            if "non_blocking" not in settings and self in handed_out and self.is_pinned():
                device = settings.get("device", arguments[0] if arguments else None)
                if len(arguments) <= 1 and isinstance(device, (str, int, torch.device)):
                    settings["non_blocking"] = True
            return original(self, *arguments, **settings)

        return copy

    handle.patches.wrap(_BaseDataLoaderIter, "__next__", marking)
    with contextlib.suppress(ImportError):
        from hasten.data.epoch.batches import BatchIterator

        handle.patches.wrap(BatchIterator, "__next__", marking)
    for name in ("to", str(accelerator.built_for())):
        if hasattr(torch.Tensor, name):  # there is no Tensor.mps
            handle.patches.wrap(torch.Tensor, name, without_waiting)


_changes: dict[Models, list[Callable[[Given], Made]]] = {}  # until its patches are undone


def change_loaders(handle: Handle, change: Callable[[Given], Made]) -> None:
    """Have `change` alter what every DataLoader is made of: its arguments by name. What it returns is called with it.

    Those that came earlier have altered them by then: workers before what needs some.
    """
    if handle.models in _changes:
        _changes[handle.models].append(change)
        return
    changes = _changes[handle.models] = [change]
    handle.patches.on_undo(lambda: _changes.pop(handle.models, None))

    def make(original: Function) -> Function:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(*arguments: object, **settings: object) -> None:
            given = signature.bind(*arguments, **settings).arguments
            loader = given.pop("self")
            made = [change(given) for change in changes]
            original(loader, **given)
            for told in made:
                if told is not None:
                    told(loader)

        return __init__

    handle.patches.wrap(DataLoader, "__init__", make)


def _may_start_processes() -> bool:
    """Whether a new process could begin: forked, or the script can be imported without training."""
    if (multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]) == "fork":
        return True
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:
        return True
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body)
