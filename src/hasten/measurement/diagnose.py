"""Draw conclusions from a run: breakdown, ceiling, findings with the costliest first, what-ifs, and a one-sentence verdict."""

from __future__ import annotations

import math
from typing import get_args

import msgspec

from hasten import format
from hasten.diagnosis import compute_rules, host_rules, input_rules, rank_rules
from hasten.diagnosis.breakdown import break_down, cache_need, find_ceiling, what_ifs
from hasten.diagnosis.case import WORTH, WORTH_INFERRED, Case
from hasten.diagnosis.situation import Situation
from hasten.optimizations.catalog import EXPERIMENTS, PROBLEMS
from hasten.optimizations.optimization import Problem
from hasten.records import CautionKind, Diagnosis, Finding, FindingKind, Run, Settings

SEEN = 0.5  # share of the step that must be known to name what it is bound by
KINDS: tuple[FindingKind, ...] = get_args(FindingKind)
CAUTIONS: tuple[CautionKind, ...] = get_args(CautionKind)

DATA: tuple[FindingKind, ...] = (
    "slow_read",
    "slow_decode",
    "slow_transform",
    "slow_collate",
    "slow_sampler",
    "slow_transport",
    "waiting_samples",
    "too_few_workers",
    "too_many_workers",
    "worker_startup",
    "python_bound_data",
    "shallow_prefetch",
)
# What counts of an estimate when findings are put in order: it is the most that can be saved.
ESTIMATED = 0.75
OWN_CODE: tuple[FindingKind, ...] = ("sync_points", "logging_each_step", "script_bound")
COMMUNICATION: tuple[FindingKind, ...] = (
    "exposed_communication",
    "rank_exchange",
    "rank_validation",
    "rank_checkpoint",
    "unused_parameters",
)
ANYWHERE: tuple[FindingKind, ...] = (
    "straggler",
    "uneven_steps",
    "uneven_shards",
    "busy_machine",
    "memory_full",
    "thread_contention",
    "page_faults",
    "profiler_on",
    "pageable_copy",
    "blocking_copy",
    "wide_copy",
    "default_stream_copy",
)
HOST_SIDE = (*DATA, *OWN_CODE, "busy_machine", "launch_bound")  # what keeps the host from queueing work on the device


def diagnose(run: Run) -> Diagnosis:
    """Diagnose one run. Raises ValueError if it has no steps."""
    breakdown = break_down(run)
    ceiling = find_ceiling(run, breakdown)
    case = Case(run, breakdown, ceiling)
    tried = _confirmed_findings(case)
    proposed = [
        *input_rules.findings(case),
        *tried,
        *compute_rules.findings(case, tried),
        *host_rules.findings(case),
        *rank_rules.findings(case),
    ]
    found = [limited for one in proposed if case.worth(limited := _while_idle(case, one))]
    known = _without_overlap(case, sorted(found, key=_to_be_expected, reverse=True))
    # What else the machine does is no fault of the script: it is named last, and in the verdict only if there is no other.
    findings = tuple(sorted(known, key=lambda f: f.kind == "busy_machine"))
    cautions = tuple(rank_rules.cautions(case))
    return Diagnosis(
        verdict=" ".join([*(f"{caution.title}." for caution in cautions), _verdict(case, findings)]),
        cautions=cautions,
        breakdown=breakdown,
        ceiling=ceiling,
        findings=findings,
        unexplained=_unexplained(case, findings),
        what_ifs=what_ifs(run, breakdown, ceiling),
        cache=cache_need(run),
    )


def _to_be_expected(finding: Finding) -> float:
    """Seconds per step, to order findings by."""
    return finding.recoverable if finding.confirmed_by is not None else ESTIMATED * finding.recoverable


def _unexplained(case: Case, findings: tuple[Finding, ...]) -> float:
    """Seconds per step that instant data loading would save, and that no finding explains; 0.0 if too few to be sure."""
    if case.ceiling.headroom is None:
        return 0.0
    explained = sum(f.recoverable for f in findings if f.kind in (*DATA, "thread_contention", "busy_machine"))
    left = case.ceiling.headroom - explained
    return left if left >= WORTH_INFERRED * case.step else 0.0


def situation_of(run: Run, settings: Settings) -> Situation:
    """What optimizations are proposed on."""
    breakdown = break_down(run)
    case = Case(run, breakdown, find_ceiling(run, breakdown))
    return Situation(case=case, diagnosis=diagnose(run), settings=settings)


def _while_idle(case: Case, finding: Finding) -> Finding:
    """Limit a finding about the host to the time in which the device is idle: the rest costs nothing."""
    if finding.confirmed_by is not None or finding.kind not in HOST_SIDE or case.waiting is None:
        return finding
    if finding.recoverable <= case.waiting:
        return finding
    note = (*finding.because, f"the device is busy in all but {format.seconds(case.waiting)} of the step")
    return msgspec.structs.replace(finding, recoverable=case.waiting, interval=None, because=note)


def _without_overlap(case: Case, findings: list[Finding]) -> tuple[Finding, ...]:
    """Limit each finding to the time that the findings before it leave, so that no time is counted twice.

    All about the input together save no more than instant batches do; all about the host, no more than the device idles. What
    an experiment of its own has measured is limited by the step alone.
    """
    replayed = case.measured("replay") is not None and case.ceiling.headroom is not None
    left = {
        "step": case.step,
        "input": case.ceiling.headroom or 0.0 if replayed else math.inf,
        "host": math.inf if case.waiting is None else case.waiting,
    }
    kept: list[Finding] = []
    for finding in findings:
        of = ["step"]
        of += ["input"] if finding.kind in DATA else []
        of += ["host"] if finding.kind in HOST_SIDE and finding.confirmed_by is None else []
        most = min(left[name] for name in (of if finding.confirmed_by in (None, "replay") else of[:1]))
        finding = finding if finding.recoverable <= most else _cut(finding, max(0.0, most))
        if case.worth(finding):
            kept.append(finding)
            for name in of:
                left[name] -= finding.recoverable
    return tuple(kept)


def _cut(finding: Finding, left: float) -> Finding:
    note = (*finding.because, "limited to the time that the findings above leave")
    return msgspec.structs.replace(finding, recoverable=left, interval=None, because=note)


STARVED = "CPU-starved"


def bound_of(case: Case, findings: tuple[Finding, ...] = ()) -> str:
    """What the step is bound by.

    A step that does not wait for batches is not data-bound. If loader workers or other threads use the cores that PyTorch
    needs, it is CPU-starved.
    """
    contended = [f.recoverable for f in findings if f.kind == "thread_contention"]
    starved = max(case.crowding, *contended, 0.0) / case.step if case.step else 0.0
    shares = {
        "data-bound": case.share("data_wait", "epoch_start"),
        STARVED: starved,
        "compute-bound": case.share("forward", "loss", "backward", "optimizer", "zero_grad") - starved,
        "communication-bound": case.share("communication"),
        "copy-bound": max(case.phase("copy"), case.breakdown.device_phases.get("copy", 0.0)) / (case.step or 1.0),
        "validation-bound": case.share("validation"),
        "checkpoint-bound": case.share("checkpoint"),
        "bound by the script's own code": case.share("script", "sync", "logging"),
    }
    if sum(shares.values()) < SEEN:
        return "bound by time that could not be measured"
    return max(shares, key=lambda name: shares[name])


def _verdict(case: Case, findings: tuple[Finding, ...]) -> str:
    bound = bound_of(case, findings)
    bound = bound[0].upper() + bound[1:]
    if findings:
        top = findings[0]
        first, rest = top.title[0], top.title[1:]
        title = first.lower() + rest if rest.split(" ")[0].islower() else top.title  # not of OpenMP, TF32
        if case.train is not None and case.train.num_workers and (bound == STARVED or _crowds(case, top)):
            workers = format.count(case.train.num_workers, noun="loader worker")
            title = f"{workers} and PyTorch share {case.run.machine.num_cores:g} cores; {title}"
        elif _bound_by(top.kind) not in (None, bound.lower()):
            bound += ", but the largest saving is elsewhere"
        return (
            f"{bound}: {title}; fixing it would save about {format.share(top.recoverable / case.step)} of the step."
        )
    left: list[str] = []
    if case.run.untried:
        left.append(f"this was not tried: {', '.join(title_of(cause) for cause in case.run.untried)}")
    if unclear := _unclear(case):
        left.append(f"this is not clear: {', '.join(unclear)}")
    if left:
        return f"{bound}. No problem was confirmed yet, but {', and '.join(left)}."
    if case.ceiling.free_batches is None:
        return (
            f"No problem found: {_in_sentence(bound)}, and no finding would save {format.share(WORTH)} of the step."
        )
    gain = max(0.0, 1 - case.ceiling.free_batches / case.step)
    if gain < WORTH:
        return (
            f"No problem found: {_in_sentence(bound)}, and within {format.share(gain)} of the step time with instant data "
            "loading."
        )
    return f"No single cause found: {_in_sentence(bound)}; instant data loading would save {format.share(gain)} of the step."


def _unclear(case: Case) -> list[str]:
    """What an experiment would have confirmed, had its interval been narrower, with the share of the step that it saves."""
    named = {problem.confirmed_by for problem in PROBLEMS}
    found: list[str] = []
    for one in case.run.interventions:
        ratio = one.ratio
        if one.name in named and ratio is not None and ratio.value <= 1 - WORTH_INFERRED and ratio.high >= 1.0:
            value, low, high = (format.share(1 - share) for share in (ratio.value, ratio.high, ratio.low))
            found.append(f"{title_of(one.name)} ({value}, {low} to {high})")
    return found


def _bound_by(kind: FindingKind) -> str | None:
    """In which part of the step a finding lies; None: in any."""
    if kind in ANYWHERE:
        return None
    rare = kind.partition("_")[0]
    if rare in ("validation", "checkpoint"):
        return f"{rare}-bound"
    if kind in OWN_CODE:
        return "bound by the script's own code"
    if kind in COMMUNICATION:
        return "communication-bound"
    return "data-bound" if kind in DATA else "compute-bound"


def _crowds(case: Case, finding: Finding) -> bool:
    """Whether batches are not waited for, and their work costs the cores that it takes."""
    return finding.kind in DATA and case.crowding > 0


def _in_sentence(bound: str) -> str:
    return bound if bound == STARVED else bound.lower()


def title_of(cause: str) -> str:
    """What is tried to confirm a cause, within a sentence."""
    if cause in EXPERIMENTS and EXPERIMENTS[cause][0].title:
        return EXPERIMENTS[cause][0].title
    title = next((problem.title for problem in PROBLEMS if problem.confirmed_by == cause), cause)
    return title if title[:2].isupper() or title.startswith("OpenMP") else title[0].lower() + title[1:]


def _confirmed_findings(case: Case) -> list[Finding]:
    """All of them: for each kind, that of the experiment that saved most."""
    best: dict[str, Finding] = {}
    for problem in PROBLEMS:
        found = _confirmed(case, problem)
        if found is not None and found.recoverable > getattr(best.get(problem.kind), "recoverable", 0.0):
            best[problem.kind] = found
    best.update(_after_page_faults(best))
    return list(best.values())


def _after_page_faults(best: dict[str, Finding]) -> dict[str, Finding]:
    """Reduce the saving of lower precision by half of that of page faults: half the memory means half the faults."""
    faults, precision = best.get("page_faults"), best.get("full_precision")
    if faults is None or precision is None:
        return {}
    left = max(0.0, precision.recoverable - faults.recoverable / 2)
    note = (*precision.because, "not counting half of the page faults, which are a separate finding")
    return {"full_precision": msgspec.structs.replace(precision, recoverable=left, interval=None, because=note)}


def _confirmed(case: Case, problem: Problem) -> Finding | None:
    measured = case.measured(problem.confirmed_by)
    if measured is None:
        return None
    tried = next(i for i in case.run.interventions if i.name == problem.confirmed_by)
    assert tried.candidate_seconds is not None and tried.baseline_seconds is not None
    recoverable, interval = problem.saved(case, tried) if problem.saved is not None else measured
    with_it, without = format.seconds(tried.baseline_seconds), format.seconds(tried.candidate_seconds)
    sides = f"in another run, {with_it} per step with it and {without} without"
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
