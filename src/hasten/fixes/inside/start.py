"""What the plug-in calls when a launch has fixes: each is put on, and it is told which of them are not.

In: the launch's spec. Out: fixes at work; those that could not be applied in a FixesReport in the launch's folder, or on
standard error in a run under a plan. Refuses to break the script.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Mapping
from pathlib import Path

from hasten.agent.patches import Patches
from hasten.fixes.inside.site import Site
from hasten.protocol import FixesReport, LaunchSpec, write


def start(spec: LaunchSpec, folder: Path, patches: Patches) -> None:
    """Put on every fix of the spec."""
    told: set[str] = {*spec.following.unasked} if spec.following is not None else set()

    def say(states: Mapping[str, str]) -> None:
        for name, state in states.items():
            if state != "on" and name not in told and multiprocessing.parent_process() is None:
                told.add(name)
                sys.stderr.write(f"hasten: {name} is not on: {state}\n")

    def tell(states: Mapping[str, str]) -> None:
        not_applied = {name: state for name, state in states.items() if state != "on"}
        with contextlib.suppress(OSError):
            write(FixesReport(not_applied=not_applied), folder)

    site = Site(patches, on_change=tell if spec.following is None else say)
    for fix in spec.fixes:
        site.install(fix)
