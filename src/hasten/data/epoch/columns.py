"""In-memory datasets: gather whole batches at once, without building samples.

Only for datasets whose code shows that they do nothing but index tensors or arrays, and whose gathered batches equal those of
default_collate.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import StackDataset, Subset, TensorDataset, default_collate

from hasten.data.generators import preserve_generators
from hasten.devices import accelerator

NUM_CHECKED = 5  # samples collated by torch for comparison


@dataclass
class Columns:
    """The tensors that a dataset indexes, and the structure of its samples."""

    tensors: list[torch.Tensor]
    layout: Callable[[list[torch.Tensor]], Any]
    rows: torch.Tensor | None = None
    """The row of the tensors for each index; None: the row number equals the index."""
    origin: Callable[[], Sequence[object]] | None = None
    """Returns the objects that the dataset indexes now."""
    raw: tuple[object, ...] = ()
    """The objects it held when the columns were created."""
    has_arrays: bool = False
    """Some of the tensors share memory with NumPy arrays."""
    source: list[tuple[int, int]] | None = None
    """For a copy on a device: the (id, version) of each source tensor."""
    held: list[torch.Tensor] | None = None

    @property
    def num_bytes(self) -> int:
        """Total bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def are_current(self) -> bool:
        """Whether the dataset still holds the same objects."""
        now = () if self.origin is None else self.origin()
        return len(now) == len(self.raw) and all(one is other for one, other in zip(now, self.raw))

    def is_copy_of(self, other: Columns) -> bool:
        """Whether these are an up-to-date device copy of the other columns, according to torch's version counters."""
        return self.source is not None and self.source == other._versions()

    def _versions(self) -> list[tuple[int, int]]:
        # Both sides keep the tensors alive, so their ids cannot have been reused.
        return [(id(tensor), tensor._version) for tensor in self.tensors]  # pyright: ignore[reportPrivateUsage]

    def to(self, device: torch.device) -> Columns:
        """Return a copy on a device."""
        rows = None if self.rows is None else self.rows.to(device)
        there = Columns([tensor.to(device) for tensor in self.tensors], self.layout, rows)
        there.source, there.held = self._versions(), self.tensors
        return there

    def __len__(self) -> int:
        return len(self.tensors[0]) if self.rows is None else len(self.rows)

    def gather(self, indices: torch.Tensor) -> Any:
        """Return the batch of `indices` (an int64 vector on the CPU), on the tensors' device."""
        device = self.tensors[0].device
        if device.type != "cpu":
            indices = (
                indices.pin_memory().to(device, non_blocking=True)
                if accelerator.has_streams(device)
                else indices.to(device)
            )
        if self.rows is not None:
            indices = self.rows[indices]
        return self.layout([tensor.index_select(0, indices) for tensor in self.tensors])


class _Dict:
    """Arranges tensors as a dict."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self._keys = tuple(keys)

    def __call__(self, tensors: list[torch.Tensor]) -> dict[Any, torch.Tensor]:
        return dict(zip(self._keys, tensors))


def _single(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0]


def columns_of(dataset: object) -> Columns | None:
    """Return the columns of a dataset that only indexes them; None if that is not certain."""
    found = _columns_of(dataset)
    if found is None or not len(found):
        return None
    count = min(NUM_CHECKED, len(found))
    indices = torch.linspace(0, len(found) - 1, count).long()
    try:
        with preserve_generators():
            collated = default_collate([dataset[index] for index in indices.tolist()])  # type: ignore[index]
            return found if equal(found.gather(indices), collated) else None
    except Exception:  # normal loading raises it again
        return None


def _columns_of(dataset: Any) -> Columns | None:
    kind = type(dataset)
    if kind is Subset:
        inner = _columns_of(dataset.dataset)
        if inner is None or inner.origin is None:
            return None
        try:
            rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        except (TypeError, ValueError):
            return None
        origin = inner.origin
        rows = rows if inner.rows is None else inner.rows[rows]
        return replace(
            inner, rows=rows, raw=(dataset.indices, *inner.raw), origin=lambda: (dataset.indices, *origin())
        )
    if kind is TensorDataset:
        return _of(lambda: list(dataset.tensors), list)
    if kind is StackDataset:
        parts = dataset.datasets
        if isinstance(parts, dict):
            return _of(lambda: list(parts.values()), _Dict(parts))
        return _of(lambda: list(parts), list)
    return _of_code(dataset)


def _of(origin: Callable[[], Sequence[Any]], layout: Callable[[list[torch.Tensor]], Any]) -> Columns | None:
    raw = tuple(origin())
    tensors: list[torch.Tensor] = []
    for array in raw:
        if type(array) is np.ndarray and array.dtype.kind in "biuf" and array.flags.writeable:
            array = torch.from_numpy(array)
        if type(array) is not torch.Tensor or array.device.type != "cpu" or not array.dim() or array.requires_grad:
            return None
        tensors.append(array)
    if not tensors or any(len(tensor) != len(tensors[0]) for tensor in tensors):
        return None
    # torch marks the storage of a tensor that NumPy sees, too, as not resizable.
    has_arrays = any(type(array) is np.ndarray or not array.untyped_storage().resizable() for array in raw)
    return Columns(tensors, layout, origin=origin, raw=raw, has_arrays=has_arrays)


def _of_code(dataset: Any) -> Columns | None:
    """Inspect a user's class whose `__getitem__` returns `self.name[index]`, or a tuple or dict of such expressions."""
    getter = type(dataset).__getitem__ if hasattr(type(dataset), "__getitem__") else None
    if hasattr(dataset, "__getitems__") or hasattr(getter, "__wrapped__"):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(getter)))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError, AttributeError):
        return None
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef) or function.decorator_list or len(function.args.args) != 2:
        return None
    owner, index = (argument.arg for argument in function.args.args)
    body = [
        line for line in function.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
    ]
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return None
    value = body[0].value
    layout: Callable[[list[torch.Tensor]], Any]
    if isinstance(value, ast.Tuple):
        names = [_indexed(part, owner, index) for part in value.elts]
        layout = list
    elif isinstance(value, ast.Dict) and all(isinstance(key, ast.Constant) for key in value.keys):
        names = [_indexed(part, owner, index) for part in value.values]
        layout = _Dict(key.value for key in value.keys if isinstance(key, ast.Constant))
    else:
        names, layout = [_indexed(value, owner, index)], _single
    # An attribute of the class may be a property, which runs code.
    if any(name is None or hasattr(type(dataset), name) or name not in vars(dataset) for name in names):
        return None
    return _of(lambda: [vars(dataset).get(name) for name in names if name is not None], layout)


def _indexed(node: ast.expr | None, owner: str, index: str) -> str | None:
    """Return the attribute's name in `self.name[index]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Name) or node.slice.id != index:
        return None
    held = node.value
    if isinstance(held, ast.Attribute) and isinstance(held.value, ast.Name) and held.value.id == owner:
        return held.attr
    return None


def equal(one: Any, other: Any) -> bool:
    """Whether two batches are identical, including types and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(equal(*pair) for pair in zip(one, other))
    return bool(one == other)
