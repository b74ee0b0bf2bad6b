"""A run under a plan: fixes at work, nothing measured but its pace.

In: the spec, from the environment. Out: the script as it is, faster. Refuses to touch output, exit code and signals.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.agent.patches import Patches
from hasten.measurement.inside.pace import Pace
from hasten.measurement.inside.seen import Seen


def follow(spec: Mapping[str, Any]) -> Patches:
    """Put the plan's fixes on, count steps, and look at losses and batches."""
    patches = Patches()
    for plugin in spec["plugins"]:
        module, _, function = plugin.partition(":")
        getattr(importlib.import_module(module), function)(spec, Path(), patches)
    Pace(patches, baseline=spec.get("baseline"), diary=spec.get("diary"))
    if spec.get("proof"):
        Seen(patches, spec["proof"])
    return patches
