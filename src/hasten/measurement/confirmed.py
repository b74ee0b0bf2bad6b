"""Findings that experiments confirmed: an optimization was enabled, and the step became faster."""

from __future__ import annotations

import msgspec

from hasten import format
from hasten.diagnosis.case import Case
from hasten.optimizations.catalog import EXPERIMENTS, PROBLEMS
from hasten.optimizations.optimization import Problem
from hasten.records import Finding


def title_of(cause: str) -> str:
    """What is tried to confirm a cause, within a sentence."""
    if cause in EXPERIMENTS and EXPERIMENTS[cause][0].title:
        return EXPERIMENTS[cause][0].title
    title = next((problem.title for problem in PROBLEMS if problem.confirmed_by == cause), cause)
    return title if title[:2].isupper() or title.startswith("OpenMP") else title[0].lower() + title[1:]


def findings(case: Case) -> list[Finding]:
    """All of them: for each kind, that of the experiment that saved most."""
    best: dict[str, Finding] = {}
    for problem in PROBLEMS:
        found = _confirmed(case, problem)
        if found is not None and found.recoverable > getattr(best.get(problem.kind), "recoverable", 0.0):
            best[problem.kind] = found
    best.update(_after_page_faults(best))
    return list(best.values())


def _after_page_faults(best: dict[str, Finding]) -> dict[str, Finding]:
    """Reduce the saving of lower precision by that of page faults: half the memory also means half the faults."""
    faults, precision = best.get("page_faults"), best.get("full_precision")
    if faults is None or precision is None:
        return {}
    left = max(0.0, precision.recoverable - faults.recoverable)
    note = (*precision.because, "not counting page faults, which are a separate finding")
    return {"full_precision": msgspec.structs.replace(precision, recoverable=left, interval=None, because=note)}


def _confirmed(case: Case, problem: Problem) -> Finding | None:
    measured = case.measured(problem.confirmed_by)
    if measured is None:
        return None
    tried = next(i for i in case.run.interventions if i.name == problem.confirmed_by)
    assert tried.candidate_seconds is not None and tried.baseline_seconds is not None
    recoverable, interval = problem.saved(case, tried) if problem.saved is not None else measured
    sides = f"{format.seconds(tried.candidate_seconds)} per step without it, {format.seconds(tried.baseline_seconds)} with it"
    return Finding(
        kind=problem.kind,
        title=problem.title,
        recoverable=recoverable,
        interval=interval,
        confirmed_by=problem.confirmed_by,
        because=(sides, *problem.evidence(case)),
        remedy=problem.remedy,
        where=problem.where(case) or case.where(problem.phase),
    )
