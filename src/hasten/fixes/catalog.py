"""All fixes, by name; and settings of several of them that go together.

In: names and values, from a plan or the command line. Out: settings that are sure to make sense, and what a launch
needs to carry them out. Refuses unknown names, wrong values and contradictions, each in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hasten.errors import PlanError
from hasten.fixes import execution, input, memory, precision, recipe
from hasten.fixes.fix import GUARANTEES, Fix, nearest
from hasten.protocol import FixSpec
from hasten.records import Guarantee, Settings

CATALOG: dict[str, Fix] = {
    fix.name: fix for room in (input, precision, execution, memory, recipe) for fix in room.FIXES
}  # in the order in which they are put on: what survives a lack of memory goes innermost, round the forward itself


def checked(settings: Mapping[str, object]) -> Settings:
    """The settings, all known, each a value for its fix, none against another. Raises PlanError."""
    known: Settings = {}
    for name, value in settings.items():
        fix = CATALOG.get(name)
        if fix is None:
            raise PlanError(f"unknown setting {name}; {nearest(name, CATALOG)}")
        known[name] = fix.check(value)
    on = turned_on(known)
    for name in on:
        for other in CATALOG[name].excludes:
            if other in on:
                raise PlanError(f"{name} and {other} contradict each other; keep one of them")
        if not CATALOG[name].finds(on):
            others = " or ".join(CATALOG[name].needs)
            raise PlanError(f"{name} does nothing without {others}; turn one on, or take {name} out")
    if on.get("num_workers") == 0:
        for other in ("prefetch_factor", "persistent_workers"):
            if other in on:
                raise PlanError(f"{other} needs workers, and num_workers is 0; take one of the two out")
    return {name: known[name] for name in CATALOG if name in known}


def turned_on(settings: Settings) -> Settings:
    """Those that do something."""
    return {name: value for name, value in settings.items() if value is not False}


def specs_of(settings: Settings) -> tuple[FixSpec, ...]:
    """The fixes that the training process puts on, in their order."""
    on = turned_on(settings)
    return tuple(
        FixSpec(name=name, installer=fix.installer, value=on[name])
        for name, fix in CATALOG.items()
        if name in on and fix.installer
    )


def variables_of(settings: Settings, *, scratch: Path | None = None) -> dict[str, str]:
    """The environment of a launch under these settings.

    `scratch` is the folder of launches that may be killed: what they keep for later ones lies there, for in the
    user's own place it might be left torn.
    """
    found: dict[str, str] = {}
    for name, value in turned_on(settings).items():
        found.update(CATALOG[name].variables(value))
        if scratch is not None and CATALOG[name].keeps_in:
            found[CATALOG[name].keeps_in] = str(scratch.resolve() / f"kept-by-{name}")
    return found


def start_seconds_of(settings: Settings) -> float:
    """How much longer a launch under these settings may take to its first step."""
    return sum(CATALOG[name].start_seconds for name in turned_on(settings))


def weakest(settings: Iterable[str]) -> Guarantee:
    """The guarantee of the weakest of these fixes; of none, that everything is as it was."""
    declared = [CATALOG[name].guarantee for name in settings]
    for guarantee in reversed(GUARANTEES):
        if guarantee in declared:
            return guarantee
    return "identical"
