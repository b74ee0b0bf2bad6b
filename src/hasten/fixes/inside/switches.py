"""A fix that is turned on and off between two steps of a running script, to see what it gains."""

from __future__ import annotations

from hasten.agent.patches import Patches
from hasten.fixes.inside.site import Site
from hasten.measurement.inside import saving
from hasten.measurement.inside.programs import Switch
from hasten.measurement.inside.session import Session
from hasten.protocol import SwitchSpec, Value


def make(session: Session, hooks: Patches, spec: SwitchSpec) -> Switch:
    """A switch that installs the fix as a plan would, on a site of its own, and takes it off again.

    `session` is where a fix that does not apply is noted; `hooks` takes the switch's own step hooks off, at the end.
    """

    def note(states: dict[str, str]) -> None:
        session.not_applied[spec.cause] = states[spec.fix.name]

    site = Site(Patches(), hooks=hooks, on_change=note)
    return Switch(name=spec.cause, on=lambda: site.install(spec.fix), off=site.take_off, settle=spec.settle)


def save_nothing(site: Site, _fix: str, _value: Value) -> None:
    """Checkpoints cost nothing: for a measurement only."""
    saving.save_nothing(True)
    site.patches.on_undo(lambda: saving.save_nothing(False))
