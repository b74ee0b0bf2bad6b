"""What crosses between hasten's own process and those of the user's command: every message, its file, its variable.

Standard library only: the user's Python may be another than hasten's, and have nothing but torch. A message is a
dataclass, written by `to_json` and checked field by field by `from_json`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hasten.errors import RecordError

Message = TypeVar("Message")

EndedBy = Literal["hasten", "script", "out of memory"]  # what ended a process; "hasten": its window was full
State = Literal["imported", "loading", "warming up", "measuring", "done"]  # in this order, never back


@dataclass(frozen=True, kw_only=True)
class Status:
    """What a measured process is doing, for hasten to read at any time."""

    state: State
    num_steps: int = 0  # measured so far
    seconds: float = 0.0  # since its warm-up ended
    num_backwards: int = 0
    ended_by: EndedBy | None = None  # None: it is at work


@dataclass(frozen=True, kw_only=True)
class FixesReport:
    """The fixes that a process could not apply, and why."""

    not_applied: dict[str, str]


FILES: dict[type, str] = {Status: "status", FixesReport: "fixes"}


# ------------------------------------------------------------------------------------------------------- files


def write(message: object, folder: Path) -> None:
    """Write this process's message of a kind. It is replaced whole, for it may be read at any time. Raises OSError."""
    path = folder / f"{FILES[type(message)]}-{os.getpid()}.json"
    scratch = path.with_suffix(".part")
    scratch.write_text(to_json(message), encoding="utf-8")
    scratch.replace(path)


def read(kind: type[Message], path: Path) -> Message:
    """The message in a file. Raises RecordError, and OSError."""
    return from_json(kind, path.read_bytes(), source=path.name)


def files_of(kind: type, folder: Path) -> list[Path]:
    """The files in which processes have written their messages of a kind."""
    return sorted(folder.glob(f"{FILES[kind]}-*.json"))


# -------------------------------------------------------------------------------------------------------- JSON


def to_json(message: object) -> str:
    """A message as JSON, on one line."""
    return json.dumps(message, default=vars)


def from_json(kind: type[Message], text: str | bytes, *, source: str) -> Message:
    """The message in a text. Raises RecordError, which names `source` and the field, where it is not one of this kind."""
    try:
        return _reader(kind)(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{source} is not a valid {kind.__name__}: {error}") from None


@functools.cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """What turns a JSON value into one of this type; it raises ValueError or TypeError where it is none."""
    origin, inner = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return functools.partial(_object, hint, {n: _reader(h) for n, h in get_type_hints(hint).items()})
    if hasattr(hint, "_fields"):  # a NamedTuple
        return functools.partial(_items, hint, [_reader(h) for h in get_type_hints(hint).values()])
    if origin is tuple and inner[-1] is not Ellipsis:
        return functools.partial(_items, lambda *items: items, [_reader(h) for h in inner])
    if origin in (list, tuple):
        return functools.partial(_list, origin, _reader(inner[0]))
    if origin is dict:
        return functools.partial(_dict, _reader(inner[1]))
    if origin is Literal:
        return functools.partial(_one_of, inner)
    kinds = [kind for kind in inner if kind is not NoneType] if origin in (Union, UnionType) else [hint]
    scalar = functools.partial(_scalar, (*kinds, int) if float in kinds else tuple(kinds))
    one = scalar if len(kinds) > 1 or not inner else _reader(kinds[0])
    return (lambda value: None if value is None else one(value)) if NoneType in inner else one


def _object(kind: type, readers: dict[str, Callable[[Any], Any]], value: Any) -> Any:
    found: dict[str, Any] = {}
    for name, item in _of(dict, value).items():
        try:
            found[name] = readers[name](item) if name in readers else item
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from None
    return kind(**found)  # raises TypeError for a field that is missing or unknown


def _items(kind: Callable[..., Any], readers: list[Callable[[Any], Any]], value: Any) -> Any:
    if len(_of(list, value)) != len(readers):
        raise ValueError(f"expected {len(readers)} items, not {len(value)}")
    return kind(*(reader(item) for reader, item in zip(readers, value)))


def _list(kind: type, reader: Callable[[Any], Any], value: Any) -> Any:
    return kind(reader(item) for item in _of(list, value))


def _dict(reader: Callable[[Any], Any], value: Any) -> Any:
    return {name: reader(item) for name, item in _of(dict, value).items()}


def _one_of(choices: tuple[object, ...], value: Any) -> Any:
    if value not in choices:
        raise ValueError(f"expected one of {', '.join(map(repr, choices))}, not {value!r:.80}")
    return value


def _scalar(kinds: tuple[type, ...], value: Any) -> Any:
    if type(value) not in kinds:  # a bool is no int here
        raise ValueError(f"expected {kinds[0].__name__}, not {value!r:.80}")
    return value


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"expected {kind.__name__}, not {value!r:.80}")
    return value
