"""Rules about the ranks of one job: whom the others wait for, what is exchanged, and whether the samples are split."""

from __future__ import annotations

from collections.abc import Iterator

from hasten import format
from hasten.diagnosis.case import WORTH_INFERRED, Case
from hasten.records import Caution, Finding, FindingKind, Late, Phase, Ranks

CROWDED = (
    0.2  # share of the step that a finding must save where the ranks take all cores of a host: less is their noise
)
LARGER = 1.1  # times the samples of the others, from which the batch is why a rank is late
IN = {
    "data_wait": "waiting for batches",
    "epoch_start": "starting an epoch",
    "script": "the script's own code",
    "copy": "copies to the device",
}


def cautions(case: Case) -> Iterator[Caution]:
    """What is wrong with the training itself."""
    ranks = case.run.ranks
    if ranks is None:
        return
    every, size = f"All {ranks.world_size} ranks", ranks.world_size
    where = case.train.where if case.train is not None else None
    split = "Give the loader a DistributedSampler, or let the framework prepare it."
    if ranks.sampling == "same":
        yield Caution(
            kind="same_samples",
            title=f"{every} train on the same samples",
            because=f"the ranks take the same samples in the same order: {size} times the work for one gradient",
            remedy=split,
            where=where,
        )
    elif ranks.sampling == "whole":
        yield Caution(
            kind="same_samples",
            title=f"{every} go through the whole dataset",
            because=f"each rank takes all samples, in an order of its own: an epoch is {size} epochs",
            remedy=split,
            where=where,
        )
    elif ranks.sampling == "overlap":
        yield Caution(
            kind="overlapping_samples",
            title="The ranks' parts of the dataset overlap",
            because="the samplers shuffle with different seeds: some samples come twice in an epoch, others never",
            remedy="Give every rank's sampler the same seed.",
            where=where,
        )
    elif ranks.repeats_order:
        yield Caution(
            kind="same_order",
            title="Every epoch has the same order",
            because="the sampler shuffles alike in the first and in the second epoch",
            remedy="Call sampler.set_epoch(epoch) before each epoch.",
            where=where,
        )


def findings(case: Case) -> Iterator[Finding]:
    """All findings about several ranks."""
    ranks = case.run.ranks
    if ranks is None or ranks.missing:
        return  # what a rank waits for cannot be separated from the exchange itself
    yield from _alone(case, ranks)
    takes_all = ranks.threads_per_rank >= case.run.machine.num_cores / ranks.ranks_per_host
    least = (CROWDED if case.on_cpu and takes_all else WORTH_INFERRED) * ranks.step_seconds
    for found in (_late(case, ranks), _in_turn(ranks), _exchange(ranks), _communication(case, ranks)):
        if found is not None and found.recoverable >= least:
            yield found


ALONE: tuple[tuple[Phase, FindingKind, str, str], ...] = (
    (
        "validation",
        "rank_validation",
        "validates",
        "Validate on all ranks, each on its part of the data, and reduce the result.",
    ),
    (
        "checkpoint",
        "rank_checkpoint",
        "saves",
        "Save less often, in the background, or with torch.distributed.checkpoint.",
    ),
)


def _alone(case: Case, ranks: Ranks) -> Iterator[Finding]:
    """Validation, or a checkpoint, on one rank while the others wait in their next collective."""
    for phase, kind, verb, remedy in ALONE:
        doing = ranks.only.get(phase)
        if doing:
            yield Finding(
                kind=kind,
                title=f"The other ranks wait while {format.ranks(doing)} {verb}",
                recoverable=(1 - len(doing) / ranks.world_size) * case.phase(phase),
                because=(f"{format.seconds(case.phase(phase))} per step, on {format.ranks(doing)} only",),
                remedy=remedy,
                where=case.where(phase),
            )


def _late(case: Case, ranks: Ranks) -> Finding | None:
    late = ranks.late
    if late is None:
        return None
    who = format.ranks(late.ranks)
    sizes = {row.rank: row.samples_per_step or 0.0 for row in ranks.rows}
    others = [size for rank, size in sizes.items() if rank not in late.ranks]
    usual = sorted(others)[len(others) // 2] if others else 0.0
    own = min(sizes[rank] for rank in late.ranks)
    part = IN.get(late.phase, late.phase)
    because = [
        f"last in {format.share(late.share)} of {ranks.num_steps} steps; "
        f"{format.seconds(late.excess)} longer in {part} than the others",
    ]
    kind: FindingKind = "straggler"
    title, remedy = f"The other ranks wait for {who}", _remedy(late)
    if late.phase not in ("data_wait", "epoch_start") and usual and own >= LARGER * usual:
        kind, title = "uneven_shards", f"{who[0].upper()}{who[1:]} has larger batches than the others"
        because.append(f"{own:.0f} samples per step, the others {usual:.0f}")
        remedy = "Give every rank batches of one size; split what is long by its length."
    hosts = {row.host for row in ranks.rows if row.rank in late.ranks}
    if ranks.num_hosts > 1 and len(hosts) == 1 and len(late.ranks) > 1:
        because.append(f"all of them on {next(iter(hosts))}")
    return Finding(
        kind=kind,
        title=title,
        recoverable=late.saved.value,
        interval=late.saved,
        because=tuple(because),
        remedy=remedy,
        where=case.where(late.phase),
    )


def _remedy(late: Late) -> str:
    if late.phase in ("data_wait", "epoch_start"):
        return "Compare its disk, its files and its workers with those of the others."
    if late.phase == "script":
        return "Look for code that only this rank runs: logging, metrics, saving."
    return "Compare its device, clock and other processes with the others: `hasten check` on that machine."


def _in_turn(ranks: Ranks) -> Finding | None:
    if not ranks.imbalance:
        return None
    return Finding(
        kind="uneven_steps",
        title="The ranks take turns being late",
        recoverable=ranks.imbalance,
        because=(
            f"in a step, the last rank takes {format.seconds(ranks.imbalance)} longer than the mean; no rank is always last",
        ),
        remedy="Batch samples of like cost (by length), so that each rank has as much to do in every step.",
    )


def _exchange(ranks: Ranks) -> Finding | None:
    exchanges = [e for e in ranks.exchanges if e.calls >= 0.9]
    seconds = sum(e.seconds for e in exchanges)
    if not exchanges:
        return None
    calls = sum(e.calls for e in exchanges)
    return Finding(
        kind="rank_exchange",
        title="The script exchanges values between ranks in every step",
        recoverable=seconds,
        because=(f"{calls:.0f} collectives per step outside the model, {format.seconds(seconds)}",),
        remedy="Keep metrics on each rank and reduce them once per epoch, or every N steps.",
        where=exchanges[0].where,
    )


def _communication(case: Case, ranks: Ranks) -> Finding | None:
    own = ranks.transfer - sum(e.seconds for e in ranks.exchanges)
    if own <= 0:
        return None
    because = [f"{format.seconds(own)} of the step on the rank that waits least: nothing is computed meanwhile"]
    num_bytes = sum(ddp.num_bytes for ddp in case.facts.ddps)
    if num_bytes:
        because.append(f"{format.size(num_bytes)} of gradients in every step, over {ranks.backend}")
    remedy = "Accumulate gradients under no_sync(), or exchange them in bfloat16 (`ddp_gradients`)."
    if any(ddp.find_unused and not ddp.unused_bytes for ddp in case.facts.ddps):
        because.append("find_unused_parameters makes one more exchange in every step, and all parameters were used")
        remedy = "Leave find_unused_parameters out, unless a branch of the model may be skipped. " + remedy
    return Finding(
        kind="exposed_communication",
        title="Ranks exchange gradients while nothing is computed",
        recoverable=own,
        because=tuple(because),
        remedy=remedy,
    )
