"""Rules about what was tried: a switch or a launch that mends one fault, and what the step gained by it.

In: a Case. Out: findings, one a kind. Refuses to promise what was not tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hasten import format
from hasten.diagnosis.case import Case
from hasten.records import Finding, Interval, Intervention, Phase
from hasten.stats import scaled


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A fault whose mending was tried as a switch or as a launch of its own."""

    kind: str
    trial: str
    title: str
    remedy: str
    phase: Phase  # where in the user's source


TRIED = (
    Tried(
        kind="anomaly_detection",
        trial="anomaly_detection",
        title="Anomaly detection is on",
        remedy="Remove torch.autograd.set_detect_anomaly / detect_anomaly; it is for finding a NaN.",
        phase="backward",
    ),
    Tried(
        kind="profiler_on",
        trial="profiler_on",
        title="A profiler is on",
        remedy="Remove the profiler (or emit_nvtx) from the training loop.",
        phase="forward",
    ),
    Tried(
        kind="full_precision",
        trial="full_precision",
        title="Computed in full precision",
        remedy="Put the forward under torch.autocast(device, dtype=torch.bfloat16).",
        phase="forward",
    ),
    Tried(
        kind="full_precision",
        trial="tf32",
        title="TF32 is off",
        remedy='Call torch.set_float32_matmul_precision("high").',
        phase="forward",
    ),
    Tried(
        kind="channels_first",
        trial="channels_first",
        title="Convolutions in channels-first layout",
        remedy="Call .to(memory_format=torch.channels_last) on the model and on its input.",
        phase="forward",
    ),
    Tried(
        kind="cudnn_autotune",
        trial="cudnn_autotune",
        title="cuDNN autotuning set against the shapes",
        remedy="Set torch.backends.cudnn.benchmark: True for fixed input shapes, False for varying ones.",
        phase="forward",
    ),
    Tried(
        kind="unfused_optimizer",
        trial="unfused_optimizer",
        title="Unfused optimizer",
        remedy="Pass fused=True to the optimizer.",
        phase="optimizer",
    ),
    Tried(
        kind="zero_grad_in_place",
        trial="zero_grad_in_place",
        title="Gradients are zeroed in place",
        remedy="Call zero_grad() without set_to_none=False.",
        phase="zero_grad",
    ),
    Tried(
        kind="denormals",
        trial="denormals",
        title="Subnormal numbers",
        remedy="Call torch.set_flush_denormal(True) at the start.",
        phase="forward",
    ),
    Tried(
        kind="page_faults",
        trial="page_faults",
        title="Memory is given back and faulted in again each step",
        remedy=(
            "Start with MALLOC_MMAP_THRESHOLD_=17179869184 MALLOC_TRIM_THRESHOLD_=17179869184 "
            "MALLOC_TOP_PAD_=268435456 in the environment (or use jemalloc)."
        ),
        phase="forward",
    ),
    Tried(
        kind="allocator_thrash",
        trial="allocator_thrash",
        title="GPU memory is given back and asked for again each step",
        remedy="Remove torch.cuda.empty_cache() from the loop: what is free is used again by itself.",
        phase="forward",
    ),
    Tried(
        kind="thread_contention",
        trial="thread_contention",
        title="OpenMP threads wait for cores that others hold",
        remedy="Call torch.set_num_threads so that threads and busy workers fit the cores.",
        phase="forward",
    ),
    Tried(
        kind="thread_contention",
        trial="passive_waiting",
        title="OpenMP threads spin while others want the cores",
        remedy="Start with OMP_WAIT_POLICY=PASSIVE in the environment.",
        phase="forward",
    ),
)


LOADER_TITLES = {
    "too_few_workers": "more loader workers",
    "too_many_workers": "fewer loader workers",
    "shallow_prefetch": "a deeper prefetch",
    "worker_startup": "persistent workers",
    "checkpoint_often": "fewer checkpoints",
    "validation_gradients": "validation without gradients",
}


def title_of(trial: str) -> str:
    """What a trial that was not made would have looked at, for a sentence."""
    title = next((fault.title for fault in TRIED if fault.trial == trial), LOADER_TITLES.get(trial, trial))
    return title if title[:2].isupper() or title.startswith("OpenMP") else title[0].lower() + title[1:]


def findings(case: Case) -> list[Finding]:
    """Of several trials of one kind the best speaks."""
    best: dict[str, Finding] = {}
    for fault in TRIED:
        found = _tried(case, fault)
        if found is not None and found.recoverable > getattr(best.get(fault.kind), "recoverable", 0.0):
            best[fault.kind] = found
    best.update(_after_page_faults(best))
    return list(best.values())


def _after_page_faults(best: dict[str, Finding]) -> dict[str, Finding]:
    """Half the precision is half the memory, and so half the faults: what keeping the memory gives is not its gain."""
    faults, precision = best.get("page_faults"), best.get("full_precision")
    if faults is None or precision is None:
        return {}
    left = max(0.0, precision.recoverable - faults.recoverable)
    note = (*precision.because, "of which page faults, a finding of their own, are left out")
    return {"full_precision": msgspec.structs.replace(precision, recoverable=left, interval=None, because=note)}


def _tried(case: Case, fault: Tried) -> Finding | None:
    measured = case.measured(fault.trial)
    if measured is None:
        return None
    recoverable, interval = measured
    tried = next(i for i in case.run.interventions if i.name == fault.trial)
    assert tried.candidate_seconds is not None and tried.baseline_seconds is not None
    because = [
        f"{format.seconds(tried.candidate_seconds)} a step without it, {format.seconds(tried.baseline_seconds)} with it"
    ]
    because += _evidence(case, fault)
    if fault.kind == "profiler_on":
        recoverable, interval = _without_profiler(case, tried)
    where = case.where(fault.phase)
    if fault.kind == "zero_grad_in_place":
        where = case.facts.zero_grad_where or where
    return Finding(
        kind=fault.kind,
        title=fault.title,
        recoverable=recoverable,
        interval=interval,
        confirmed_by=fault.trial,
        because=tuple(because),
        remedy=fault.remedy,
        where=where,
    )


def _without_profiler(case: Case, tried: Intervention) -> tuple[float, Interval]:
    """A profiler that is read once an epoch is seldom read in the trial's short window, but in the whole run's it is."""
    assert tried.ratio is not None and tried.candidate_seconds is not None
    ratio, without = tried.ratio, tried.candidate_seconds / tried.ratio.value
    saved = Interval(*scaled((ratio.value, ratio.low, ratio.high), lambda r: max(0.0, case.regular - without * r)))
    return saved.value, saved


def _evidence(case: Case, fault: Tried) -> list[str]:
    facts = case.facts
    if fault.kind == "profiler_on" and (lines := case.profiling()):
        return [f"its own lines take {format.seconds(sum(line.seconds for line in lines))} a step"]
    if fault.kind == "denormals" and facts.subnormal_share:
        return [
            f"{format.share(facts.subnormal_share)} of the values in parameters, gradients and states are subnormal"
        ]
    if fault.kind == "allocator_thrash" and facts.memory_requests is not None:
        return [f"the driver is asked for memory {facts.memory_requests:.0f} times a step"]
    if fault.kind == "unfused_optimizer":
        tensors = sum(o.num_tensors for o in facts.optimizers)
        return [f"the optimizer steps {tensors} tensors in {format.seconds(case.phase('optimizer'))}"]
    if fault.kind == "thread_contention":
        workers = case.train.num_workers if case.train is not None else 0
        return [f"{facts.num_threads} threads and {workers} workers on {case.run.machine.num_cores:g} cores"]
    if fault.kind == "full_precision":
        units = [f for f in case.run.machine.cpu_features if "bf16" in f] if case.on_cpu else []
        return [f"the CPU has {', '.join(units)}"] if units else []
    return []
