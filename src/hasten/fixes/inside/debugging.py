"""Debugging aids that were left on: anomaly detection and profilers.

In: a site. Out: they stay off, and what reads a profiler's result finds it empty. Refuses nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.autograd.profiler_util import EventList

from hasten.fixes.inside.site import Site

Function = Callable[..., object]
PROFILERS = (torch.autograd.profiler.profile, torch.autograd.profiler.emit_nvtx, torch.profiler.profile)
SWITCHES = ("__enter__", "start", "stop", "step")
EXPORTS = ("export_chrome_trace", "export_stacks", "export_memory_timeline")
RESULTS = ("key_averages", "events", "total_average")


def no_debug(site: Site, fix: str, value: object) -> None:
    """Anomaly detection and profilers stay off."""
    no_anomaly_detection(site, fix, value)
    no_profiler(site, fix, value)


def no_anomaly_detection(site: Site, _fix: str, _value: object) -> None:
    """Anomaly detection alone stays off."""
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    site.patches.on_undo(lambda: torch.set_anomaly_enabled(*before))  # once the function below is the script's again
    torch.set_anomaly_enabled(False)
    site.patches.wrap(torch, "set_anomaly_enabled", _always_off)


def no_profiler(site: Site, _fix: str, _value: object) -> None:
    """Profilers alone stay off."""
    for kind in PROFILERS:
        for name in (*SWITCHES, *EXPORTS):
            if hasattr(kind, name):
                site.patches.wrap(kind, name, _returning_itself if name in SWITCHES else _doing_nothing)
        for name in RESULTS:
            if hasattr(kind, name):
                site.patches.wrap(kind, name, _finding_nothing)
        site.patches.wrap(kind, "__exit__", _doing_nothing)


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


def _always_off(original: Function) -> Function:
    @functools.wraps(original)
    def set_anomaly_enabled(*_arguments: object, **_settings: object) -> object:
        return original(False)

    return set_anomaly_enabled


def _finding_nothing(original: Function) -> Function:
    @functools.wraps(original)
    def results(*_arguments: object, **_settings: object) -> EventList:
        return EventList()

    return results
