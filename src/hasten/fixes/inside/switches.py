"""A fix that is turned on and off between two steps of a running script, to see what it gains."""

from __future__ import annotations

from hasten.agent.patches import Patches
from hasten.fixes.inside.site import Site
from hasten.measurement.inside import saving
from hasten.measurement.inside.programs import Switch
from hasten.measurement.inside.session import Session


def make(session: Session, hooks: Patches, name: str, fix: str, installer: str, value: object, settle: int) -> Switch:
    """A switch that installs the fix as a plan would, on a site of its own, and takes it off again.

    Args:
        session: where a fix that does not apply is noted.
        hooks: what takes the switch's own step hooks off, at the end.
        name: the cause that the switch confirms.
        fix: the fix's name in a plan.
        installer: "module:function" of the fix.
        value: the fix's value.
        settle: steps after each change that are not counted.
    """

    def note(states: dict[str, str]) -> None:
        session.not_applied[name] = states[fix]

    site = Site(Patches(), hooks=hooks, on_change=note)
    return Switch(name=name, on=lambda: site.install(fix, installer, value), off=site.take_off, settle=settle)


def save_nothing(site: Site, _fix: str, _value: object) -> None:
    """Checkpoints cost nothing: for a measurement only."""
    saving.save_nothing(True)
    site.patches.on_undo(lambda: saving.save_nothing(False))
