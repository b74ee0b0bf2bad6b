"""A run under a plan: fixes at work, nothing measured but its pace."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from hasten.agent.patches import Patches
from hasten.measurement.inside.pace import Pace
from hasten.measurement.inside.seen import Seen
from hasten.protocol import START, LaunchSpec


def follow(spec: LaunchSpec) -> Patches:
    """Put the plan's fixes on, count steps, and look at losses and batches."""
    patches, following = Patches(), spec.following
    assert following is not None
    pkgutil.resolve_name(START)(spec, Path(), patches)
    Pace(patches, following)
    if following.proof is not None:
        Seen(patches, following.proof)
    return patches
