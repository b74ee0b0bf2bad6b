"""What checkpoints cost: they are left out for a measurement, and never in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.optimizations.optimization import WORTH, Experiment, Symptoms
from hasten.protocol import Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle


def save_nothing(handle: Handle, _value: Value) -> None:
    """Have savers return at once."""
    from hasten.agent import saving

    saving.save_nothing(True)
    handle.patches.on_undo(lambda: saving.save_nothing(False))


def _suspect(symptoms: Symptoms) -> bool | None:
    return True if symptoms.shares.of("checkpoint") >= WORTH else None


EXPERIMENT = Experiment(
    cause="checkpoint_often",
    suspect=_suspect,
    title="fewer checkpoints",
    enable=save_nothing,
    settle=2,
    usual=0.07,
)
