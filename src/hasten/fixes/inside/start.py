"""What the plug-in calls when a launch has fixes: each is put on, and it is told which of them are not.

In: the launch's spec. Out: fixes at work; in a trial `fixes-<pid>.json` in its folder, in a run under a plan a line for
each that is not on. Refuses to break the script.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.agent.patches import Patches
from hasten.fixes.inside.site import Site


def start(spec: Mapping[str, Any], folder: Path, patches: Patches) -> None:
    """Put on every fix of the spec: (name, installer, value)."""

    told: set[str] = {*spec.get("unasked", ())}  # nobody misses what nobody asked for

    def say(states: Mapping[str, str]) -> None:
        for name, state in states.items():
            if state != "on" and name not in told and multiprocessing.parent_process() is None:
                told.add(name)
                sys.stderr.write(f"hasten: {name} is not on: {state}\n")

    def tell(states: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):
            scratch = folder / f".fixes-{os.getpid()}"
            scratch.write_text(json.dumps(states), encoding="utf-8")
            scratch.replace(folder / f"fixes-{os.getpid()}.json")

    note = tell if spec["mode"] != "follow" else say
    site = Site(patches, on_change=note)
    for name, installer, value in spec.get("fixes", []):
        site.install(name, installer, value)
    note(site.states)
