"""Rules about computing, for what can only be inferred."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hasten import format
from hasten.diagnosis.breakdown import intervention
from hasten.diagnosis.case import Case
from hasten.protocol import GRADIENT_PHASES
from hasten.records import Finding, Interval
from hasten.stats import scaled

MANY_CALLS = 300  # from Python into PyTorch, per step
OVERHEAD = 0.3  # of the computing that must be call overhead, for its calls to be the bottleneck
WAITS_FOR_HOST = 0.4  # of the step; a device that waits for longer is not kept busy by the host
READS_EACH_STEP = 0.9  # calls; they empty the device's queue, so the host is late after each
LAUNCHING = 0.6  # of the time in which a device waits; torch.compile saved 54% of it (minGPT, H100), nn.LSTM 90%
FUSING = 0.4  # of the calls' overhead, on a CPU; torch.compile saved 43% of it (a normalizing flow), nn.LSTM all
SMALL_BATCH = 8
TINY_BATCH = 4
IDLE_FLOPS = 4e9  # per second: a few percent of what one CPU core computes in float32


def findings(case: Case, tried: Sequence[Finding]) -> Iterator[Finding]:
    """All findings about computing that no experiment confirms; `tried` are those that one did."""
    # Inferred findings get only the time that the confirmed ones leave.
    calling = _calling(case, tried)
    if calling is not None:
        yield calling
    yield from _device(case)


def _calling(case: Case, tried: Sequence[Finding]) -> Finding | None:
    """Launch-bound, or batch too small: the step is mostly call overhead, not computation."""
    computing = case.phase("forward", "loss", "backward", "optimizer", "zero_grad")
    computing -= sum(f.recoverable for f in tried)
    if computing >= 0.4 * case.step and (found := _small_batch(case) or _tiny_batch(case, computing)) is not None:
        return found
    # An optimizer that calls many operators is a separate finding.
    learning = case.phase(*GRADIENT_PHASES)
    learning -= sum(f.recoverable for f in tried if f.kind not in ("unfused_optimizer", "zero_grad_in_place"))
    if learning < 0.4 * case.step:
        return None
    return _launch_bound(case, learning) if case.waiting is None else _launch_bound_device(case, learning)


def _small_batch(case: Case) -> Finding | None:
    """Batches joined into a larger one took hardly longer."""
    size = _batch_size(case)
    joined = next((i for i in case.run.interventions if i.name == "small_batch" and i.ratio is not None), None)
    if joined is None or joined.ratio is None or size is None or size > SMALL_BATCH or joined.ratio.high > 0.7:
        return None
    # Both sides were measured with instant data loading.
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
            f"{format.share(joined.ratio.value)} of the time per sample",
        ),
        remedy="Raise the batch size (and scale the learning rate with it).",
        where=case.train.where if case.train is not None else None,
    )


def _tiny_batch(case: Case, computing: float) -> Finding | None:
    """Batch too small, inferred without a loader's batches to join: few operations for few samples."""
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
    calls, each = case.facts.num_calls, case.facts.call_overhead
    if not calls or each is None or calls < MANY_CALLS or calls * each < OVERHEAD * computing:
        return None
    saved = FUSING * min(computing, calls * each)
    return Finding(
        kind="launch_bound",
        title="Bound by the overhead of many small operators",
        recoverable=saved,
        because=(
            f"{calls:,.0f} calls into PyTorch per step, {format.seconds(computing / calls)} each including backward",
            f"a call that computes next to nothing takes {format.seconds(each)} here",
        ),
        remedy="Use fused modules (nn.GRU, scaled_dot_product_attention), vectorize loops, or torch.compile.",
        where=case.where("forward"),
    )


def _launch_bound_device(case: Case, learning: float) -> Finding | None:
    """The device waits in most of the step's phases, and the host is not held up by reading tensors back."""
    waited = min(case.breakdown.device_waited, learning)
    reads = sum(p.calls for p in case.run.sync_points)
    if waited < WAITS_FOR_HOST * case.step or reads >= READS_EACH_STEP:
        return None
    return Finding(
        kind="launch_bound",
        title="Bound by the overhead of many small operators",
        recoverable=LAUNCHING * waited,
        because=(
            f"the device finishes before the host queues more in phases of {format.seconds(waited)} per step, "
            f"{format.share(waited / case.step)} of it",
            *((f"{case.facts.num_operators:.0f} operators per step",) if case.facts.num_operators else ()),
            f"the saving is a guess: {format.share(LAUNCHING)} of that time",
        ),
        remedy="torch.compile, or fused modules (nn.GRU, scaled_dot_product_attention), or a larger batch.",
        where=case.where("forward"),
    )


def _batch_size(case: Case) -> float | None:
    known = [s.num_samples for s in case.run.steps if s.num_samples is not None]
    return sum(known) / len(known) / case.batches if known else None


def _device(case: Case) -> Iterator[Finding]:
    """Findings about the accelerator: unused, wrong build of PyTorch, slow copies."""
    machine, facts = case.run.machine, case.facts
    computing = case.phase("forward", "loss", "backward", "optimizer")
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    built = machine.torch_cuda is not None
    if case.on_cpu and machine.devices and not hidden and (not built or machine.cuda_usable):
        name = machine.devices[0].name
        yield Finding(
            kind="cuda_unused" if built else "cpu_only_build",
            title="The GPU is not used" if built else "PyTorch is a CPU-only build, but there is a GPU",
            recoverable=0.8 * computing,
            because=(
                f"{name} is present; the parameters are on the CPU",
                "the saving is a guess: no step ran on the GPU",
            ),
            remedy='Move the model and the batches to "cuda".'
            if built
            else "Install a CUDA build of PyTorch; `hasten check` shows the command.",
            where=case.where("forward"),
        )
    if any(m.data_parallel for m in facts.models):
        yield Finding(
            kind="data_parallel",
            title="DataParallel instead of DistributedDataParallel",
            recoverable=0.2 * computing,
            because=(
                "DataParallel copies the model to every GPU in every step, from a single Python process",
                "the saving is a guess: DistributedDataParallel was not tried",
            ),
            remedy="Use DistributedDataParallel, launched with torchrun.",
            where=case.where("forward"),
        )
    yield from _copies(case)


def _copies(case: Case) -> Iterator[Finding]:
    copies, ceiling = case.facts.copies, case.ceiling
    if copies is None:
        return
    copying = case.breakdown.device_phases.get("copy", 0.0)
    because = f"{copies.num_bytes / 1e6:.1f} MB per step"
    if not case.tried("device replay"):
        saved, confirmed_by = copying, None
        because += f"; the device copies for {format.seconds(copying)} per step and computes nothing during that time"
    elif case.measured("device replay") is None or ceiling.free_copies is None or ceiling.free_batches is None:
        return  # not significant: batches replayed from the device took as long as others
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
            "float32 is copied where uint8 would be enough",
            "Copy uint8 and convert on the device.",
        )
    else:
        kind, title, remedy = (
            "default_stream_copy",
            "Copies and computation share one stream",
            "Copy the next batch on a separate stream during computation, as hasten.Loader(device=...) does.",
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
