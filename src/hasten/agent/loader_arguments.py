"""The arguments of DataLoaders, changed as they are made; and workers that stay from one epoch to the next."""

from __future__ import annotations

import ast
import functools
import inspect
import multiprocessing
import random
import sys
import types
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from hasten.agent.handle import Handle
from hasten.agent.models import Models

Given = dict[str, Any]
Made = Callable[[Any], object] | None
Function = Callable[..., object]

_changes: WeakKeyDictionary[Models, list[Callable[[Given], Made]]] = WeakKeyDictionary()


def change_loaders(handle: Handle, change: Callable[[Given], Made]) -> None:
    """Have `change` alter what every DataLoader is made of: its arguments by name. What it returns is called with it.

    Those that came earlier have altered them by then: workers before what needs some. A change that fails disables its
    optimization.
    """

    def attempted(given: Given) -> Made:
        made: list[Made] = []
        handle.attempt(lambda: made.append(change(given)))
        return made[0] if made else None

    if handle.models not in _changes:
        _changes[handle.models] = []
        handle.models.patches.wrap(DataLoader, "__init__", functools.partial(_changing, _changes[handle.models]))
    changes = _changes[handle.models]
    changes.append(attempted)
    handle.patches.on_undo(lambda: changes.remove(attempted))


def _changing(changes: list[Callable[[Given], Made]], original: Function) -> Function:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(*arguments: object, **settings: object) -> None:
        given = signature.bind(*arguments, **settings).arguments
        loader = given.pop("self")
        made = [change(given) for change in changes]
        original(loader, **given)
        for notify in made:
            if notify is not None:
                notify(loader)

    return __init__


def may_start_processes() -> bool:
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


def keep_workers(handle: Handle) -> None:
    """Workers stay from one epoch to the next, and are seeded for each as new ones would be: samples are the same."""

    kept: WeakSet[DataLoader[object]] = WeakSet()
    seen: WeakKeyDictionary[DataLoader[object], object] = WeakKeyDictionary()

    def change(given: Given) -> Made:
        if not given.get("num_workers") or given.get("persistent_workers") or given.get("worker_init_fn") is not None:
            return None  # what a worker does as it begins, it is to do in each epoch
        if isinstance(given.get("dataset"), IterableDataset):
            return None  # a worker's copy may be at its end
        given["persistent_workers"] = True
        return kept.add

    def iterating(original: Function) -> Function:
        @functools.wraps(original)
        def __iter__(self: DataLoader[object]) -> object:
            if self in kept:
                # Workers that stay have the dataset as it was: one that the script has changed since needs others.
                now = state_of(self.dataset)
                if seen.get(self, now) != now or _is_held(self):
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


def _is_held(loader: DataLoader[object]) -> bool:
    """Whether a loop over the loader is under way: torch would start the same iterator over, and end that loop."""
    if loader._iterator is None:  # pyright: ignore[reportPrivateUsage]
        return False
    free = types.SimpleNamespace(_iterator=object())
    return sys.getrefcount(loader._iterator) > sys.getrefcount(free._iterator)  # pyright: ignore[reportPrivateUsage]


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


MOST_PARTS = 10_000
FEW = 64  # elements of a list that are looked into; of longer ones only which they are, and in what order
SAMPLED = 1 << 16  # elements of an array
PLAIN = (bool, int, float, complex, str, bytes, type(None))
GENERATORS = ("Random", "RandomState", "Generator", "generator")  # of random numbers, and of values
TABLES = ("pandas.core.frame", "pandas.core.series")
SHARED = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, torch.Generator)


def _is_fixed(values: Collection[object]) -> bool:
    """Whether values cannot change within: plain ones, and tuples of these."""
    numpy = sys.modules.get("numpy")
    fixed = (*PLAIN, PurePath, *(() if numpy is None else (numpy.generic,)))
    inner = {type(part) for value in values if type(value) is tuple for part in value}
    return all(issubclass(kind, fixed) for kind in inner | ({type(value) for value in values} - {tuple}))


def state_of(dataset: object) -> object:
    """The dataset's attributes, and theirs: plain values, arrays by their contents, the rest by which objects they are.

    Where that does not tell (iterators and generators, whose copies in workers have moved on, tables of pandas, long lists of
    what may change within) each answer is another.
    """
    parts: list[object] = []
    waiting: list[Any] = [dataset]
    seen: dict[int, object] = {}  # held, so that no number is given again
    while waiting:
        value = waiting.pop()
        if isinstance(value, PLAIN):
            parts.append(value)
            continue
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if len(seen) > MOST_PARTS:
            return object()
        parts.append(id(value))
        if isinstance(value, torch.Tensor):
            parts.append(value._version)
        elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray):
            flat: Any = value.reshape(-1)
            if not value.dtype.hasobject:
                parts.append(zlib.crc32(flat[:: max(1, flat.size // SAMPLED)].tobytes()))
        elif isinstance(value, Mapping):
            parts.append(hash(tuple(map(id, value.values()))))
            if len(value) > FEW and not _is_fixed(value.values()):
                return object()
            waiting += list(value.values()) if len(value) <= FEW else []
        elif isinstance(value, (list, tuple, set, frozenset)):
            parts.append(hash(tuple(map(id, value))))
            if len(value) > FEW and not _is_fixed(value):
                return object()
            waiting += list(value) if len(value) <= FEW else []
        elif isinstance(value, Iterator) or type(value).__name__ in GENERATORS or type(value).__module__ in TABLES:
            return object()
        elif not isinstance(value, SHARED):
            waiting += list(getattr(value, "__dict__", {}).values())
    return tuple(parts)
