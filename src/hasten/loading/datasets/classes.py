"""What Python tells of objects and their classes without running any code of theirs.

In: objects, classes, cells. Out: what they hold, and what is known of them. Refuses to judge.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from hasten.loading.datasets.trusted import is_trusted_module


def is_readable(kind: type) -> bool:
    """Whether a class was made by a class statement, outside of the standard library."""
    compiled = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)
    standard = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    return not standard and not any(isinstance(one, compiled) for one in vars(kind).values())


def overrides(owner: type, name: str) -> bool:
    """Whether a library that the class derives from has such a method, and so may call this one."""
    if name.startswith("__") or not callable(vars(owner)[name]):
        return False
    return any(name in vars(base) for base in owner.__mro__ if is_trusted_module(base.__module__))


def states(value: Any) -> Iterator[object]:
    """All that an object of the user's class holds."""
    builtin: tuple[Any, ...] = (list, tuple, dict, set, frozenset, str, bytes, int, float)
    yield from (base(value) for base in builtin if isinstance(value, base))
    yield attributes(value)
    slots = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
    for names in slots:
        for name in (names,) if isinstance(names, str) else names:
            yield name, getattr(value, name, None)


def attributes(value: object) -> dict[str, Any] | None:
    """What is in its `__dict__`, past a `__getattr__` that may do anything."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def content(cell: types.CellType) -> Any:
    """Of a closure's cell; None where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def type_and_text(value: object) -> tuple[str, str]:
    """By which plain values of several types can be sorted."""
    return type(value).__name__, repr(value)


def full_name(kind: type) -> str:
    """Module and name."""
    return f"{kind.__module__}.{kind.__qualname__}"
