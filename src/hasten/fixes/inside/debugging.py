"""Debugging aids that were left on: anomaly detection and profilers.

In: a handle. Out: they stay off, and what reads a profiler's result finds it empty. Refuses to keep anomaly
detection off where the script may catch what it raises.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd.profiler_util import EventList

from hasten.agent.frames import user_place
from hasten.agent.handle import Handle
from hasten.protocol import Value

Function = Callable[..., object]
PROFILERS = (torch.autograd.profiler.profile, torch.autograd.profiler.emit_nvtx, torch.profiler.profile)
SWITCHES = ("__enter__", "start", "stop", "step")
EXPORTS = ("export_chrome_trace", "export_stacks", "export_memory_timeline")
RESULTS = ("key_averages", "events", "total_average")


def no_debug(handle: Handle, value: Value) -> None:
    """Anomaly detection and profilers stay off."""
    no_anomaly_detection(handle, value)
    no_profiler(handle, value)


def no_anomaly_detection(handle: Handle, _value: Value) -> None:
    """Anomaly detection alone stays off; but where the script may catch what it raises, it is left as it is."""
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    handle.patches.on_undo(
        lambda: torch.set_anomaly_enabled(*before)
    )  # once the function below is the script's again
    torch.set_anomaly_enabled(False)

    def staying_off(original: Function) -> Function:
        @functools.wraps(original)
        def set_anomaly_enabled(mode: bool, *arguments: object, **settings: object) -> object:
            place = user_place(sys._getframe(1)) if mode else None  # pyright: ignore[reportPrivateUsage]
            if place is None or not _catches_backward(place[0]):
                return original(False)
            handle.refuse("the script catches exceptions of backward, which may be anomaly detection's")
            return original(mode, *arguments, **settings)

        return set_anomaly_enabled

    handle.patches.wrap(torch, "set_anomaly_enabled", staying_off)


@functools.cache
def _catches_backward(file: str) -> bool:
    """Whether a `try` of this file has a backward in it, or a function of the file that makes one; True if not known."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    making, found = {"backward", "manual_backward"}, -1
    while found != len(making):  # whoever calls one that makes one makes one
        found = len(making)
        making |= {name for name, body in bodies.items() if making & _called_in(body)}
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers]
    return any(making & _called_in(inner) for node in tries for inner in node.body)


def _called_in(node: ast.AST) -> set[str]:
    calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    names = (getattr(call, "attr", None) or getattr(call, "id", None) for call in calls)
    return {name for name in names if name is not None}


def no_profiler(handle: Handle, _value: Value) -> None:
    """Profilers alone stay off."""
    for kind in PROFILERS:
        for name in (*SWITCHES, *EXPORTS):
            if hasattr(kind, name):
                handle.patches.wrap(kind, name, _returning_itself if name in SWITCHES else _doing_nothing)
        for name in RESULTS:
            if hasattr(kind, name):
                handle.patches.wrap(kind, name, _finding_nothing)
        handle.patches.wrap(kind, "__exit__", _doing_nothing)


def _returning_itself(original: Function) -> Function:
    @functools.wraps(original)
    def itself(self: object, *_arguments: object, **_settings: object) -> object:
        return self

    return itself


def _doing_nothing(original: Function) -> Function:
    @functools.wraps(original)
    def nothing(*_arguments: object, **_settings: object) -> None:
        """It was never on."""

    return nothing


def _finding_nothing(original: Function) -> Function:
    @functools.wraps(original)
    def results(*_arguments: object, **_settings: object) -> EventList:
        return EventList()

    return results
