"""What crosses between hasten's own process and those of the user's command: every message, its file, its variable.

Standard library only: the user's Python may be another than hasten's, and have nothing but torch. What a process has
measured is in `raw_run`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hasten.errors import RecordError

FOLDER_VARIABLE = "HASTEN_RUN_FOLDER"  # environment variable: where measured processes write their messages
SPEC_VARIABLE = "HASTEN_SPEC"  # environment variable: the LaunchSpec, as JSON
TURN_ASKED, TURN_GIVEN = "turn-asked", "turn-given"  # named pipes: a process asks for its turn, and is given it

Message = TypeVar("Message")
Value = bool | int | float | str  # of a fix
Reader = Callable[[Any], Any]
SandboxForm = Literal["overlay", "landlock", "redirect"]
Mode = Literal["measure", "plain", "in turns", "first steps", "interventions", "hold", "here", "follow"]
State = Literal["imported", "loading", "warming up", "measuring", "done"]  # in this order, never back
StageName = Literal["read", "decode", "transform", "getitem", "collate"]  # of making a batch
StartMethod = Literal["fork", "spawn", "forkserver"]
TierName = Literal["ram", "disk", "device"]
EndedBy = Literal["hasten", "script", "out of memory"]  # what ended a process; "hasten": its window was full

Phase = Literal[
    "data_wait",  # blocked in next(loader)
    "epoch_start",  # creating the loader's iterator (worker start) and its first batch
    "copy",  # host-to-device copies made by the script
    "forward",  # root modules
    "loss",  # from the end of the root forward to the start of backward
    "backward",  # outermost backward
    "optimizer",  # optimizer step
    "zero_grad",
    "communication",  # waiting for a collective: what the ranks exchange, and the slowest of them
    "sync",  # .item(), .cpu(), .numpy(), .tolist(), float(tensor), printing a tensor
    "logging",  # print, logging, experiment trackers, progress bars
    "validation",  # everything from the first to the last event of a validation
    "checkpoint",  # saving
    "script",  # the script's own code outside every phase above, from sampling
]
GRADIENT_PHASES: tuple[Phase, ...] = ("forward", "loss", "backward")
"""The phases of a step on the host, in their usual order.

A phase is exclusive: time in a nested phase counts for the inner one only, so the phases and `unaccounted` sum to the step.
"""


# ------------------------------------------------------------------------------------------- what a launch is to do


@dataclass(frozen=True, kw_only=True)
class FixSpec:
    """An optimization to apply."""

    name: str  # its key in a plan
    installer: str  # "module:function", called with the Handle and the value
    value: Value


@dataclass(frozen=True, kw_only=True)
class SwitchSpec:
    """An optimization to enable and disable between two steps."""

    cause: str  # that it confirms
    fix: FixSpec
    settle: int = 1  # steps after each change that are not counted


@dataclass(frozen=True, kw_only=True)
class Interventions:
    """What to alternate with the plain step in one process."""

    switches: tuple[SwitchSpec, ...] = ()
    switches_first: bool = False  # before the instruments below
    min_steps: int = 1  # of a switch's segment
    replay: bool = False  # held batches in the place of loaded ones
    instant: bool = False  # the same, held by the loader's workers
    device_replay: str | None = None  # the same, held on this device
    join: bool = False  # several held batches as one
    drain: bool = False  # the loader alone, at the end
    within: float = math.inf  # seconds in which switches may begin


@dataclass(frozen=True, kw_only=True)
class SeenInProof:
    """What a plan's proof saw of losses and batches; a run that leaves it is warned about."""

    loss: float | None = None  # mean of the last third of `loss_steps`; None: epochs may have been cut short
    loss_spread: float | None = None
    loss_steps: int | None = None
    batch_mean: float | None = None
    batch_spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class Following:
    """A run under a plan: nothing is measured but its pace."""

    script: str
    settings: dict[str, Value]  # of the plan
    log: str | None = None  # the file of such runs; each appends a PlannedRun
    proof: SeenInProof | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What the processes of one launch are to do. Seconds are of steps that are measured, unless said otherwise."""

    mode: Mode = "measure"
    seconds: float = math.inf
    num_steps: int | None = None  # "measure": at most; "first steps": exactly, of several ranks at least
    full: bool = False  # "hold": mark every phase
    fixes: tuple[FixSpec, ...] = ()
    start_seconds: float = 0.0  # that the fixes may take before the first step
    seed: int | None = None
    shift: int = 0  # added to every seed that the script sets
    repeated_batches: int | None = None  # the same over and over, in epochs as long as ever
    warm_steps: int = 0  # of the warm-up, until each of these has come
    warm_seconds: float = 0.0  # that this warm-up may take
    epoch_batches: int | None = None  # epochs end after so many
    quality: int | None = None  # batches to fingerprint; None: what training does to the model is not recorded
    perturb: int = 0  # change every parameter by so many of its last bits first
    own_samples: bool = False  # record which samples are asked for, and make some once more
    interventions: Interventions = Interventions()
    brief: bool = False  # the script ends soon: few steps of warm-up, and for each intervention
    following: Following | None = None
    launcher: int | None = None  # process id of hasten; None: nobody ends what waits for this process
    sockets: str | None = None  # folder for the sockets of loader workers
    sandbox: SandboxForm | None = None


# --------------------------------------------------------------------------------------- what measured processes write


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


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run under a plan, as `records.PlannedRunRecord` reads it."""

    script: str
    settings: dict[str, Value]
    ended: float  # seconds since 1970
    num_steps: int
    samples_per_second: float | None


# ----------------------------------------------------------------------------------------------- files and JSON


def write(message: object, folder: Path) -> None:
    """Write this process's message of a kind. It is replaced whole, for it may be read at any time. Raises OSError."""
    path = folder / f"{type(message).__name__.lower()}-{os.getpid()}.json"
    scratch = path.with_suffix(".part")
    scratch.write_text(to_json(message), encoding="utf-8")
    scratch.replace(path)


def read(kind: type[Message], path: Path) -> Message:
    """The message in a file. Raises RecordError, and OSError."""
    return from_json(kind, path.read_bytes(), source=path.name)


def files_of(kind: type, folder: Path) -> list[Path]:
    """The files in which processes have written their messages of a kind."""
    return sorted(folder.glob(f"{kind.__name__.lower()}-*.json"))


def to_json(message: object) -> str:
    """A message as JSON, on one line."""
    return json.dumps(message, default=vars)


def from_json(kind: type[Message], text: str | bytes, *, source: str) -> Message:
    """The message in a text. Raises RecordError, which names `source` and the field, where it is not one of this kind."""
    try:
        return reader_of(kind)(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{source} is not a valid {kind.__name__}: {error}") from None


@functools.cache
def reader_of(hint: Any) -> Reader:
    """What makes an instance of a type out of a JSON value; it raises ValueError or TypeError where that is none.

    A class that has a `from_json` reads itself by it.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hasattr(hint, "from_json"):
        return hint.from_json
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return functools.partial(_object, hint, {n: reader_of(h) for n, h in get_type_hints(hint).items()})
    if hasattr(hint, "_fields"):  # a NamedTuple
        return functools.partial(_items, hint._make, [reader_of(h) for h in get_type_hints(hint).values()])
    if origin is tuple and inner[-1] is not Ellipsis:
        return functools.partial(_items, tuple, [reader_of(h) for h in inner])
    if origin in (list, tuple):
        return functools.partial(_list, origin, reader_of(inner[0]))
    if origin is dict:
        return functools.partial(_dict, reader_of(inner[1]))
    if origin is Literal:
        return functools.partial(_one_of, inner)
    kinds = [kind for kind in inner if kind is not NoneType] if origin in (Union, UnionType) else [hint]
    scalar = functools.partial(_scalar, (*kinds, int) if float in kinds else tuple(kinds))
    one = scalar if len(kinds) > 1 or not inner else reader_of(kinds[0])
    return (lambda value: None if value is None else one(value)) if NoneType in inner else one


def _object(kind: type, readers: dict[str, Reader], value: Any) -> Any:
    found: dict[str, Any] = {}
    for name, item in _of(dict, value).items():
        if name not in readers:
            raise ValueError(f"unknown field {name!r:.80}")
        try:
            found[name] = readers[name](item)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from None
    return kind(**found)  # raises TypeError for a field that is missing


def _items(make: Reader, readers: list[Reader], value: Any) -> Any:
    if len(_of(list, value)) != len(readers):
        raise ValueError(f"expected {len(readers)} items, not {len(value)}")
    return make(reader(item) for reader, item in zip(readers, value))


def _list(kind: type, reader: Reader, value: Any) -> Any:
    return kind(map(reader, _of(list, value)))


def _dict(reader: Reader, value: Any) -> Any:
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
