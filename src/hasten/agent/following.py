"""A run under a plan: fixes at work, nothing measured but its pace."""

from __future__ import annotations

from pathlib import Path

from hasten.agent.handle import apply
from hasten.agent.models import Models
from hasten.agent.pace import Pace
from hasten.agent.seen import Seen
from hasten.patches import Patches
from hasten.protocol import LaunchSpec


def follow(spec: LaunchSpec) -> Patches:
    """Put the plan's fixes on, count steps, and look at losses and batches."""
    patches, following = Patches(), spec.following
    assert following is not None
    apply(spec, Path(), patches, Models(patches))
    Pace(patches, following)
    if following.proof is not None:
        Seen(patches, following.proof)
    return patches
