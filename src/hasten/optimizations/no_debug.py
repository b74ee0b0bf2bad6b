"""Debugging aids that were left on: anomaly detection and profilers."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.optimizations.optimization import Experiment, Optimization, Problem, Symptoms, from_finding
from hasten.protocol import GRADIENT_PHASES, Value
from hasten.stats import scaled

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.case import Case
    from hasten.diagnosis.situation import Situation
    from hasten.records import Interval, Intervention

Function = Callable[..., object]
SWITCHES = ("__enter__", "start", "stop", "step")  # of a profiler
EXPORTS = ("export_chrome_trace", "export_stacks", "export_memory_timeline")
RESULTS = ("key_averages", "events", "total_average")


def enable(handle: Handle, value: Value) -> None:
    """Keep anomaly detection and profilers off."""
    no_anomaly_detection(handle, value)
    no_profiler(handle, value)


def no_anomaly_detection(handle: Handle, _value: Value) -> None:
    """Keep anomaly detection off; but where the script may catch what it raises, it is not changed."""
    import torch

    from hasten.agent.frames import user_place

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

    handle.wrap(torch, "set_anomaly_enabled", staying_off)


@functools.cache
def _catches_backward(file: str) -> bool:
    """Whether a `try` of this file has a backward in it, or a function of the file that makes one; True if not known."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    making, found = {"backward", "manual_backward"}, -1
    while found != len(making):  # a function that calls one that does also does
        found = len(making)
        making |= {name for name, body in bodies.items() if making & _called_in(body)}
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers]
    return any(making & _called_in(inner) for node in tries for inner in node.body)


def _called_in(node: ast.AST) -> set[str]:
    calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    names = (getattr(call, "attr", None) or getattr(call, "id", None) for call in calls)
    return {name for name in names if name is not None}


def no_profiler(handle: Handle, _value: Value) -> None:
    """Keep profilers off; what reads their results finds them empty."""
    import torch

    for kind in (torch.autograd.profiler.profile, torch.autograd.profiler.emit_nvtx, torch.profiler.profile):
        for name in (*SWITCHES, *EXPORTS):
            if hasattr(kind, name):
                handle.wrap(kind, name, _returning_itself if name in SWITCHES else _doing_nothing)
        for name in RESULTS:
            if hasattr(kind, name):
                handle.wrap(kind, name, _finding_nothing)
        handle.wrap(kind, "__exit__", _doing_nothing)


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
    def results(*_arguments: object, **_settings: object) -> object:
        from torch.autograd.profiler_util import EventList

        return EventList()

    return results


def _suspect_anomaly(symptoms: Symptoms) -> bool | None:
    return True if symptoms.facts.anomaly_detection else None


def _suspect_profiler(symptoms: Symptoms) -> bool | None:
    return True if symptoms.facts.profiler else None


def _prior(situation: Situation) -> float | None:
    facts = situation.case.facts
    if not facts.anomaly_detection and not facts.profiler:
        return None
    return 0.2 * situation.case.phase(*GRADIENT_PHASES)


def _profiler_evidence(case: Case) -> Sequence[str]:
    from hasten import format

    lines = case.profiling()
    return [f"its own lines take {format.seconds(sum(line.seconds for line in lines))} per step"] if lines else []


def _saved_without_profiler(case: Case, tried: Intervention) -> tuple[float, Interval]:
    """The saving in the whole run: a profiler that is read once per epoch is rarely read in a short experiment."""
    from hasten.records import Interval

    assert tried.ratio is not None and tried.candidate_seconds is not None
    ratio, without = tried.ratio, tried.candidate_seconds / tried.ratio.value
    saved = Interval(*scaled((ratio.value, ratio.low, ratio.high), lambda r: max(0.0, case.regular - without * r)))
    return saved.value, saved


OPTIMIZATION = Optimization(
    name="no_debug",
    title="anomaly detection and profilers stay off",
    guarantee="rounding",  # a script may catch what anomaly detection raises
    answers=("anomaly_detection", "profiler_on"),
    propose=from_finding("anomaly_detection", "profiler_on", otherwise="no debugging aid is on", prior=_prior),
    enable=enable,
    on_any_machine=True,
    experiments=(
        Experiment(cause="anomaly_detection", suspect=_suspect_anomaly, enable=no_anomaly_detection, usual=0.5),
        Experiment(cause="profiler_on", suspect=_suspect_profiler, enable=no_profiler, toggled=False, usual=0.2),
    ),
    problems=(
        Problem(
            kind="anomaly_detection",
            title="Anomaly detection is on",
            remedy="Remove torch.autograd.set_detect_anomaly / detect_anomaly; use it only to find a NaN.",
            phase="backward",
        ),
        Problem(
            kind="profiler_on",
            title="A profiler is on",
            remedy="Remove the profiler (or emit_nvtx) from the training loop.",
            evidence=_profiler_evidence,
            saved=_saved_without_profiler,
        ),
    ),
)
