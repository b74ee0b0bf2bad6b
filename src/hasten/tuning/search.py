"""Which fix to try next, and when to stop.

In: a diagnosed baseline, a bench and a budget. Out: trials, one after another, and the settings that are left. Refuses
to measure: it asks for trials and for diagnoses.

Greedy: what promises most is tried first, alone, on top of what was kept. After each fix that is kept the run is
diagnosed again, for the bottleneck has moved. At the end each kept fix is left out once, for some are made needless by
others. A script in which nothing was found gets one trial, of what was suspected most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hasten.fixes.catalog import CATALOG, checked
from hasten.fixes.fix import Fix, Proposal, Situation
from hasten.fixes.recipe import IN_WHOLE_RUNS
from hasten.records import Settings, Skipped, Trial, Value

SMALL_GAIN = 1.15  # a speedup below which a fix may owe it to what has been kept since

Tried = frozenset[tuple[str, Value]]
Try = Callable[[Settings, str, Value, float], Trial]
Diagnose = Callable[[Settings], Situation | None]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A fix with a value, worth a trial."""

    fix: Fix
    proposal: Proposal


def candidates(
    situation: Situation, *, tried: Tried = frozenset(), recipes: bool = False
) -> tuple[list[Candidate], list[Skipped]]:
    """What is worth trying, most promising first; and what is not, with the reason."""
    found: list[Candidate] = []
    skipped: list[Skipped] = []
    for fix in CATALOG.values():
        if situation.settings.get(fix.name, False) is not False:
            continue
        if fix.guarantee == "recipe" and not recipes:
            skipped.append(Skipped(fix=fix.name, reason="it changes the recipe; --recipe tries those too"))
            continue
        proposed = fix.propose(situation)
        if isinstance(proposed, str):
            skipped.append(Skipped(fix=fix.name, reason=proposed))
            continue
        proposed = [p for p in proposed if (fix.name, p.value) not in tried]
        if not proposed:
            continue
        worth = [p for p in proposed if p.saves >= situation.least]
        if not worth:
            most = max(p.saves for p in proposed) / situation.case.step
            skipped.append(Skipped(fix=fix.name, reason=f"it promises {100 * most:.1f} % of the step at the most"))
        found += [Candidate(fix=fix, proposal=proposal) for proposal in worth]
    return sorted(found, key=lambda c: -c.proposal.saves), skipped


def search(
    first: Situation,
    *,
    try_fix: Try,
    diagnose_again: Diagnose,
    time_left: Callable[[], float],
    on_time_over: Callable[[Candidate], object] = lambda _: None,
    recipes: bool = False,
    tried: Tried = frozenset(),
) -> Iterator[tuple[Settings, Trial]]:
    """Yield the settings so far and each trial as it ends; `on_time_over` is told what would have been next."""
    situation, settings = first, dict(first.settings)
    while True:
        waiting, _ = candidates(situation, tried=tried, recipes=recipes)
        chosen = next((c for c in waiting if _agrees(settings, c)), None)
        if chosen is None:
            return
        if time_left() <= 0:
            on_time_over(chosen)
            return
        name, value = chosen.fix.name, chosen.proposal.value
        trial = try_fix(settings, name, value, chosen.proposal.saves)
        tried |= {(name, value)}
        if trial.verdict == "faster":
            settings = {**settings, name: value}
            yield settings, trial
            again = diagnose_again(settings) if time_left() > 0 else None
            situation = again if again is not None else situation
        else:
            yield settings, trial
            if first.looks_healthy and not settings:
                return


def _agrees(settings: Settings, candidate: Candidate) -> bool:
    fix = candidate.fix
    return not {*settings}.intersection((fix.name, *fix.excludes)) and fix.finds(settings)


def leave_out(
    settings: Settings, *, gains: Mapping[str, float], try_fix: Try, time_left: Callable[[], float]
) -> Iterator[tuple[Settings, Trial]]:
    """Kept fixes against the plan without them: one that gains nothing beside the others goes.

    `gains` are their speedups when they were kept. Those that gained much, and answer what no other fix of the plan
    answers, are not asked again.
    """
    for name in list(settings):
        if len(settings) < 2 or time_left() <= 0:
            return
        if name in IN_WHOLE_RUNS:
            continue
        rest = {other: value for other, value in settings.items() if other != name}
        if not all(CATALOG[other].finds(rest) for other in rest) or not _may_be_needless(name, rest, gains):
            continue
        trial = try_fix(rest, name, settings[name], 0.0)
        if trial.verdict in ("slower", "no difference", "failed"):
            settings = checked(rest)
        yield settings, trial


def _may_be_needless(name: str, rest: Settings, gains: Mapping[str, float]) -> bool:
    shared = any({*CATALOG[name].answers} & {*CATALOG[other].answers} for other in rest)
    return shared or gains.get(name, 1.0) < SMALL_GAIN
