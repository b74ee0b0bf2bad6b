"""Rules about what the device computes, and how it is told to.

In: a Case. Out: findings. Refuses to promise what was not tried, save where trying is impossible from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from hasten.diagnosis.case import Case, ms, percent
from hasten.records import Finding, Interval
from hasten.stats import scaled

MANY_CALLS = 300  # from Python into torch, a step
SHORT_CALL = 60e-6  # mean seconds of a call, its backward included, that is mostly the cost of calling
CALLING = 5e-6  # seconds of a call that computes next to nothing, forward and backward
SMALL_BATCH = 8
TINY_BATCH = 4
IDLE_FLOPS = 4e9  # a second: a few hundredths of what one core of today computes in float32


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A fault whose mending was tried as a switch or as a launch of its own."""

    kind: str
    trial: str
    title: str
    remedy: str
    phase: str  # where in the user's source


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


def findings(case: Case) -> Iterator[Finding]:
    """All findings about computing. Of several trials of one kind the best speaks."""
    best: dict[str, Finding] = {}
    for fault in TRIED:
        found = _tried(case, fault)
        if found is not None and found.recoverable > getattr(best.get(fault.kind), "recoverable", 0.0):
            best[fault.kind] = found
    best.update(_after_page_faults(best))
    yield from best.values()
    double = _double_precision(case)
    if double is not None:
        yield double
    # What is inferred may only promise what the trials leave.
    calling = _calling(case, mended=sum(f.recoverable for f in best.values()))
    if calling is not None:
        yield calling
    yield from _device(case)


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
    tried = next(i for i in case.run.interventions if i.name == fault.trial)
    assert tried.candidate_seconds is not None and tried.baseline_seconds is not None
    because = [f"{ms(tried.candidate_seconds)} a step without it, {ms(tried.baseline_seconds)} with it"]
    because += _evidence(case, fault)
    where = case.where(fault.phase)
    if fault.kind == "zero_grad_in_place":
        where = case.facts.zero_grad_where or where
    return Finding(
        kind=fault.kind,
        title=fault.title,
        recoverable=measured[0],
        interval=measured[1],
        confirmed_by=fault.trial,
        because=tuple(because),
        remedy=fault.remedy,
        where=where,
    )


def _evidence(case: Case, fault: Tried) -> list[str]:
    facts = case.facts
    if fault.kind == "denormals" and facts.subnormal_share:
        return [f"{percent(facts.subnormal_share)} of the values in parameters, gradients and states are subnormal"]
    if fault.kind == "unfused_optimizer":
        tensors = sum(o.num_tensors for o in facts.optimizers)
        return [f"the optimizer steps {tensors} tensors in {ms(case.phase('optimizer'))}"]
    if fault.kind == "thread_contention":
        workers = case.train.num_workers if case.train is not None else 0
        return [f"{facts.num_threads} threads and {workers} workers on {case.run.machine.num_cores:g} cores"]
    if fault.kind == "full_precision":
        units = [f for f in case.run.machine.cpu_features if "bf16" in f] if case.on_cpu else []
        return [f"the CPU has {', '.join(units)}"] if units else []
    return []


def _double_precision(case: Case) -> Finding | None:
    """Weights in float64: twice the bytes of float32, and half the operations of a vector unit."""
    models = [m for m in case.facts.models if "float64" in m.dtypes]
    computing = case.phase("forward", "loss", "backward", "optimizer")
    if not models:
        return None
    return Finding(
        kind="full_precision",
        title="Computed in float64",
        recoverable=0.5 * computing,
        because=(
            f"{models[0].name} has float64 weights; float32 takes half the bytes and half the vector operations",
        ),
        remedy="Use float32, unless the method needs double: .float() instead of .double(), and no float64 input.",
        where=case.where("forward"),
    )


def _calling(case: Case, *, mended: float) -> Finding | None:
    """Launch-bound, or too small a batch: the step is the cost of calling operators, not of computing."""
    computing = case.phase("forward", "loss", "backward", "optimizer", "zero_grad") - mended
    if computing < 0.4 * case.step:
        return None
    return _small_batch(case) or _tiny_batch(case, computing) or _launch_bound(case, computing)


def _small_batch(case: Case) -> Finding | None:
    """The batch joined to a larger one took hardly longer."""
    size = _batch_size(case)
    joined = next((i for i in case.run.interventions if i.name == "small_batch" and i.ratio is not None), None)
    if joined is None or joined.ratio is None or size is None or size > SMALL_BATCH or joined.ratio.high > 0.7:
        return None
    saved, low, high = scaled(
        (joined.ratio.value, joined.ratio.low, joined.ratio.high), lambda r: case.regular * (1 - r)
    )
    return Finding(
        kind="small_batch",
        title=f"Batch of {size:.0f} is too small for the device",
        recoverable=saved,
        interval=Interval(value=saved, low=low, high=high),
        confirmed_by="small_batch",
        because=(
            f"a batch {joined.settings['joined']} times as large takes {ms(joined.candidate_seconds or 0)}, "
            f"{percent(joined.ratio.value)} of the time a sample",
        ),
        remedy="Raise the batch size (and scale the learning rate with it).",
        where=case.train.where if case.train is not None else None,
    )


def _tiny_batch(case: Case, computing: float) -> Finding | None:
    """The same where no loader's batches could be joined: next to nothing is computed for a few samples."""
    size, flops = _batch_size(case), case.facts.num_flops
    if case.train is not None or size is None or size > TINY_BATCH or not flops or not case.on_cpu:
        return None
    if flops / computing > IDLE_FLOPS:
        return None
    return Finding(
        kind="small_batch",
        title=f"Batch of {size:.0f} is too small for the device",
        recoverable=0.85 * computing,
        because=(
            f"{flops / 1e6:.1f} million operations take {ms(computing)}: {flops / computing / 1e9:.1f} GFLOP/s",
        ),
        remedy="Raise the batch size (and scale the learning rate with it).",
        where=case.where("forward"),
    )


def _launch_bound(case: Case, computing: float) -> Finding | None:
    calls = case.facts.num_calls
    if not calls or calls < MANY_CALLS or computing / calls > SHORT_CALL:
        return None
    # What a fused call would still compute is what a call takes beyond being called.
    saved = min(0.9, CALLING / (computing / calls) + 0.5) * computing
    return Finding(
        kind="launch_bound",
        title="Bound by calling tiny operators",
        recoverable=saved,
        because=(f"{calls:.0f} calls into torch a step, {1e6 * computing / calls:.0f} µs each with their backward",),
        remedy="Use fused modules (nn.GRU, scaled_dot_product_attention), vectorise loops, or torch.compile.",
        where=case.where("forward"),
    )


def _batch_size(case: Case) -> float | None:
    known = [s.num_samples for s in case.run.steps if s.num_samples is not None]
    return sum(known) / len(known) / case.batches if known else None


def _device(case: Case) -> Iterator[Finding]:
    """What concerns the accelerator: unused, wrongly built for, or fed by slow copies."""
    machine, facts = case.run.machine, case.facts
    computing = case.phase("forward", "loss", "backward", "optimizer")
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    built = machine.torch_cuda is not None
    if case.on_cpu and machine.devices and not hidden and (not built or machine.cuda_usable):
        name = machine.devices[0].name
        yield Finding(
            kind="cuda_unused" if built else "cpu_only_build",
            title="The GPU is not used" if built else "torch is built for the CPU only, and there is a GPU",
            recoverable=0.8 * computing,
            because=(f"{name} is present; the parameters lie on the CPU", "the gain is a guess: no step ran on it"),
            remedy='Move model and batches to "cuda".'
            if built
            else "Install a CUDA build of torch; `hasten check` says which.",
            where=case.where("forward"),
        )
    if any(m.data_parallel for m in facts.models):
        yield Finding(
            kind="data_parallel",
            title="DataParallel instead of DistributedDataParallel",
            recoverable=0.2 * computing,
            because=("DataParallel copies the model to every GPU in every step, from one Python process",),
            remedy="Use DistributedDataParallel, started by torchrun.",
            where=case.where("forward"),
        )
    yield from _copies(case)


def _copies(case: Case) -> Iterator[Finding]:
    copies, ceiling = case.facts.copies, case.ceiling
    if copies is None or ceiling.free_copies is None or ceiling.free_batches is None:
        return
    if case.measured("device replay") is None:
        return
    saved = max(0.0, ceiling.free_batches - ceiling.free_copies)
    if copies.pinned < 0.5:
        kind, title, remedy = (
            "pageable_copy",
            "Copies from pageable memory",
            "Set pin_memory=True and copy with non_blocking=True.",
        )
    elif copies.blocking > 0.5:
        kind, title, remedy = (
            "blocking_copy",
            "The host waits for each copy",
            "Copy with .to(device, non_blocking=True).",
        )
    elif "float32" in copies.dtypes and case.train is not None and case.train.decoded_bytes_per_sample:
        kind, title, remedy = (
            "wide_copy",
            "float32 is sent where uint8 would do",
            "Send uint8 and convert on the device.",
        )
    else:
        return
    yield Finding(
        kind=kind,
        title=title,
        recoverable=saved if kind != "wide_copy" else 0.75 * saved,
        confirmed_by="device replay",
        because=(f"{copies.num_bytes / 1e6:.1f} MB a step; without copies the step takes {ms(ceiling.free_copies)}",),
        remedy=remedy,
        where=copies.where,
    )
