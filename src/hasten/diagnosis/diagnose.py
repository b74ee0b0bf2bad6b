"""A Run becomes a Diagnosis.

In: a Run. Out: breakdown, ceiling, findings costliest first, what-ifs, and the verdict in one sentence. Refuses to
measure.
"""

from __future__ import annotations

import msgspec

from hasten.diagnosis import compute_rules, host_rules, input_rules
from hasten.diagnosis.breakdown import break_down
from hasten.diagnosis.case import WORTH, Case, percent
from hasten.diagnosis.ceiling import cache_need, find_ceiling, what_ifs
from hasten.records import Diagnosis, Finding, Run

RULES = (input_rules.findings, compute_rules.findings, host_rules.findings)

SEEN = 0.5  # share of the step that must be known before anything is said to bind it
# Every kind of finding; each has a section in docs/bottlenecks.md.
KINDS = (
    "slow_read",
    "slow_decode",
    "slow_transform",
    "slow_collate",
    "too_few_workers",
    "too_many_workers",
    "worker_startup",
    "python_bound_data",
    "shallow_prefetch",
    "busy_machine",
    "pageable_copy",
    "blocking_copy",
    "wide_copy",
    "sync_points",
    "launch_bound",
    "full_precision",
    "double_precision",
    "channels_first",
    "cudnn_autotune",
    "unfused_optimizer",
    "zero_grad_in_place",
    "anomaly_detection",
    "profiler_on",
    "validation_gradients",
    "validation_often",
    "checkpoint_often",
    "logging_each_step",
    "small_batch",
    "memory_full",
    "page_faults",
    "thread_contention",
    "denormals",
    "cuda_unused",
    "cpu_only_build",
    "data_parallel",
    "script_bound",
)


def diagnose(run: Run) -> Diagnosis:
    """Conclude what can be concluded from one run. Raises ValueError on a run without steps."""
    breakdown = break_down(run)
    ceiling = find_ceiling(run, breakdown)
    case = Case(run, breakdown, ceiling)
    found = [f for rule in RULES for f in rule(case) if case.worth(f)]
    findings = _without_overlap(case, sorted(found, key=lambda f: -f.recoverable))
    return Diagnosis(
        verdict=_verdict(case, findings),
        breakdown=breakdown,
        ceiling=ceiling,
        findings=findings,
        what_ifs=what_ifs(run, breakdown, ceiling),
        cache=cache_need(run),
    )


def _without_overlap(case: Case, findings: list[Finding]) -> tuple[Finding, ...]:
    """Let no finding promise time that those before it promised already: no step loses more than itself."""
    left = case.step
    kept: list[Finding] = []
    for finding in findings:
        finding = finding if finding.recoverable <= left else _cut(finding, left)
        if case.worth(finding):
            kept.append(finding)
            left -= finding.recoverable
    return tuple(kept)


def _cut(finding: Finding, left: float) -> Finding:
    note = (*finding.because, "of what the findings before it leave")
    return msgspec.structs.replace(finding, recoverable=left, interval=None, because=note)


def bound_of(case: Case) -> str:
    """What the step is bound by, in the field's words."""
    crowding = case.crowding / case.step if case.step else 0.0
    data = case.share("data_wait", "epoch_start") + crowding
    computing = case.share("forward", "loss", "backward", "optimizer", "zero_grad") - crowding
    shares = {
        "data-bound": data,
        "compute-bound": computing,
        "validation-bound": case.share("validation"),
        "checkpoint-bound": case.share("checkpoint"),
        "bound by the script's own code": case.share("script", "sync", "logging"),
    }
    if sum(shares.values()) < SEEN:
        return "bound by what could not be seen"
    return max(shares, key=lambda name: shares[name])


def _verdict(case: Case, findings: tuple[Finding, ...]) -> str:
    bound = bound_of(case)
    bound = bound[0].upper() + bound[1:]
    if findings:
        top = findings[0]
        first, rest = top.title[0], top.title[1:]
        title = first.lower() + rest if rest.split(" ")[0].islower() else top.title  # not of OpenMP, TF32
        return f"{bound}: {title}; mending it recovers about {percent(top.recoverable / case.step)} of the step."
    if case.ceiling.free_batches is None:
        return f"Nothing wrong: {bound.lower()}, and no finding is worth {percent(WORTH)} of the step."
    gain = max(0.0, 1 - case.ceiling.free_batches / case.step)
    if gain < WORTH:
        return (
            f"Nothing wrong: {bound.lower()}, within {percent(gain)} of what this machine does with batches for free."
        )
    return f"No single fault found: {bound.lower()}; batches for free would still gain {percent(gain)}."
