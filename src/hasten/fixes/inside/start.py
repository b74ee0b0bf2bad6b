"""What the plug-in calls when a launch has fixes: each is put on, and it is told which of them are not.

In: the launch's spec. Out: fixes at work; in a trial `fixes-<pid>.json` in its folder, in a run under a plan a line for
each that is not on. Refuses to break the script.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.agent.patches import Patches
from hasten.fixes.inside.site import Site
from hasten.protocol import FixesReport, write


def start(spec: Mapping[str, Any], folder: Path, patches: Patches) -> None:
    """Put on every fix of the spec: (name, installer, value)."""

    told: set[str] = {*spec.get("unasked", ())}  # nobody misses what nobody asked for

    def say(states: Mapping[str, str]) -> None:
        for name, state in states.items():
            if state != "on" and name not in told and multiprocessing.parent_process() is None:
                told.add(name)
                sys.stderr.write(f"hasten: {name} is not on: {state}\n")

    def tell(states: Mapping[str, str]) -> None:
        not_applied = {name: state for name, state in states.items() if state != "on"}
        with contextlib.suppress(OSError):
            write(FixesReport(not_applied=not_applied), folder)

    site = Site(patches, on_change=tell if spec["mode"] != "follow" else say)
    for name, installer, value in spec.get("fixes", []):
        site.install(name, installer, value)
