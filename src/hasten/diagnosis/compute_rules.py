"""Rules about what the device computes, and how it is told to: what was tried, and what can only be inferred.

In: a Case. Out: findings. Refuses to infer what the trials already promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hasten import format
from hasten.diagnosis import tried_rules
from hasten.diagnosis.case import Case
from hasten.diagnosis.ceiling import intervention
from hasten.records import Finding, Interval
from hasten.stats import scaled

MANY_CALLS = 300  # from Python into torch, a step
SHORT_CALL = 60e-6  # mean seconds of a call, its backward included, that is mostly the cost of calling
CALLING = 5e-6  # seconds of a call that computes next to nothing, forward and backward
SMALL_BATCH = 8
TINY_BATCH = 4
IDLE_FLOPS = 4e9  # a second: a few hundredths of what one core of today computes in float32


def findings(case: Case) -> Iterator[Finding]:
    """All findings about computing."""
    tried = tried_rules.findings(case)
    yield from tried
    double = _double_precision(case)
    if double is not None:
        yield double
    # What is inferred may only promise what the trials leave.
    calling = _calling(case, tried)
    if calling is not None:
        yield calling
    yield from _device(case)


def _double_precision(case: Case) -> Finding | None:
    """Weights in float64: twice the bytes of float32, and half the operations of a vector unit."""
    models = [m for m in case.facts.models if "float64" in m.dtypes]
    computing = case.phase("forward", "loss", "backward", "optimizer")
    if not models:
        return None
    return Finding(
        kind="double_precision",
        title="Computed in float64",
        recoverable=0.5 * computing,
        because=(
            f"{models[0].name} has float64 weights; float32 takes half the bytes and half the vector operations",
        ),
        remedy="Use float32, unless the method needs double: .float() instead of .double(), and no float64 input.",
        where=case.where("forward"),
    )


def _calling(case: Case, tried: Sequence[Finding]) -> Finding | None:
    """Launch-bound, or too small a batch: the step is the cost of calling operators, not of computing."""
    computing = case.phase("forward", "loss", "backward", "optimizer", "zero_grad")
    computing -= sum(f.recoverable for f in tried)
    if computing >= 0.4 * case.step and (found := _small_batch(case) or _tiny_batch(case, computing)) is not None:
        return found
    # An optimizer that calls many operators is a finding of its own.
    learning = case.phase("forward", "loss", "backward")
    learning -= sum(f.recoverable for f in tried if f.kind not in ("unfused_optimizer", "zero_grad_in_place"))
    return _launch_bound(case, learning) if learning >= 0.4 * case.step else None


def _small_batch(case: Case) -> Finding | None:
    """The batch joined to a larger one took hardly longer."""
    size = _batch_size(case)
    joined = next((i for i in case.run.interventions if i.name == "small_batch" and i.ratio is not None), None)
    if joined is None or joined.ratio is None or size is None or size > SMALL_BATCH or joined.ratio.high > 0.7:
        return None
    # Both sides had their batches for free.
    replay = intervention(case.run, "replay")
    base = case.regular * (replay.ratio.value if replay is not None and replay.ratio is not None else 1.0)
    saved, low, high = scaled((joined.ratio.value, joined.ratio.low, joined.ratio.high), lambda r: base * (1 - r))
    return Finding(
        kind="small_batch",
        title=f"Batch of {size:.0f} is too small for the device",
        recoverable=saved,
        interval=Interval(value=saved, low=low, high=high),
        confirmed_by="small_batch",
        because=(
            f"a batch {joined.settings['joined']} times as large takes {format.seconds(joined.candidate_seconds or 0)}, "
            f"{format.share(joined.ratio.value)} of the time a sample",
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
            f"{flops / 1e6:.1f} million operations take {format.seconds(computing)}: {flops / computing / 1e9:.1f} GFLOP/s",
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
            because=(
                "DataParallel copies the model to every GPU in every step, from one Python process",
                "the gain is a guess: DistributedDataParallel was not tried",
            ),
            remedy="Use DistributedDataParallel, started by torchrun.",
            where=case.where("forward"),
        )
    yield from _copies(case)


def _copies(case: Case) -> Iterator[Finding]:
    copies, ceiling = case.facts.copies, case.ceiling
    if copies is None:
        return
    copying = case.breakdown.device_phases.get("copy", 0.0)
    because = f"{copies.num_bytes / 1e6:.1f} MB a step"
    if not case.tried("device replay"):
        saved, confirmed_by = copying, None
        because += f"; the device copies for {format.seconds(copying)} of it, and computes nothing meanwhile"
    elif case.measured("device replay") is None or ceiling.free_copies is None or ceiling.free_batches is None:
        return  # not sure: batches replayed from the device took as long as others
    else:
        saved, confirmed_by = max(0.0, ceiling.free_batches - ceiling.free_copies), "device replay"
        because += f"; without copies the step takes {format.seconds(ceiling.free_copies)}"
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
        kind, title, remedy = (
            "default_stream_copy",
            "Copies wait in line with the computing",
            "Copy the next batch on a stream of its own while this one is computed, as hasten.Loader(device=...) does.",
        )
    yield Finding(
        kind=kind,
        title=title,
        recoverable=saved if kind != "wide_copy" else 0.75 * saved,
        confirmed_by=confirmed_by,
        because=(because,),
        remedy=remedy,
        where=copies.where,
    )
