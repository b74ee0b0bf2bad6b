"""How fast could it go, and what would other hardware or more memory give?

In: a Run and its Breakdown. Out: a Ceiling, CacheNeed and WhatIfs, each with its reasoning. Refuses to measure.
"""

from __future__ import annotations

import statistics

from hasten import format
from hasten.records import Breakdown, CacheNeed, Ceiling, Intervention, LoaderFacts, Run, WhatIf

USABLE_MEMORY = 0.8  # share of the available memory that a cache may take


def intervention(run: Run, name: str) -> Intervention | None:
    """The intervention of this name, if it gave a ratio."""
    return next((i for i in run.interventions if i.name == name and i.ratio is not None), None)


def train_loader(run: Run) -> LoaderFacts | None:
    """The loader that feeds training."""
    return next((x for x in run.facts.loaders if x.role == "train"), None)


def find_ceiling(run: Run, breakdown: Breakdown) -> Ceiling:
    """Step times with batches and copies for free, and the loader's own pace."""
    replay, device = intervention(run, "replay"), intervention(run, "device replay")
    drain = next((i for i in run.interventions if i.name == "drain" and i.candidate_seconds is not None), None)
    batches = statistics.fmean([s.num_batches for s in run.steps] or [1.0])
    # An epoch's start is the loader's doing, so replay spares it too; validation and checkpoints stay.
    start = breakdown.phases.get("epoch_start") or 0.0
    rare = sum(breakdown.phases.get(p) or 0.0 for p in ("validation", "checkpoint"))
    regular = breakdown.step_seconds - start - rare
    free = replay.ratio.value * regular + rare if replay is not None and replay.ratio is not None else None
    copies = None
    if replay is not None and replay.ratio is not None and device is not None and device.ratio is not None:
        copies = device.ratio.value * replay.ratio.value * regular + rare  # tried against batches that are replayed
    return Ceiling(
        free_batches=free,
        free_copies=copies,
        loader_alone=drain.candidate_seconds * batches if drain is not None and drain.candidate_seconds else None,
        headroom=max(0.0, breakdown.step_seconds - free) if free is not None else None,
    )


def cache_need(run: Run) -> CacheNeed | None:
    """What a full cache of decoded samples takes; None without a loader of known length."""
    train = train_loader(run)
    if train is None or not train.num_samples or train.in_memory:
        return None
    per_sample = train.decoded_bytes_per_sample
    if per_sample is None and train.bytes_per_batch and train.batch_size:
        per_sample = train.bytes_per_batch / train.batch_size
    if not per_sample:
        return None
    total = per_sample * train.num_samples
    available = USABLE_MEMORY * run.machine.memory_available_bytes
    return CacheNeed(
        bytes_per_sample=per_sample,
        num_samples=train.num_samples,
        total_bytes=total,
        k_factor=per_sample / train.file_bytes if train.file_bytes else None,
        fits_share=min(1.0, available / total),
    )


def what_ifs(run: Run, breakdown: Breakdown, ceiling: Ceiling) -> tuple[WhatIf, ...]:
    """Predicted step times after an upgrade, only where one would change something."""
    found = [
        _faster_disk(run, breakdown),
        _more_memory(run, breakdown, ceiling),
    ]
    return tuple(w for w in found if w is not None and w.step_seconds < 0.97 * breakdown.step_seconds)


def _faster_disk(run: Run, breakdown: Breakdown) -> WhatIf | None:
    """What the disk made the loader wait: the bytes that came from it, at the pace of the files read cold."""
    read, train = run.file_read, train_loader(run)
    inside = [s for s in run.resources if s.at >= run.steps[0].start and s.read_bytes is not None]
    if read is None or read.cold_seconds is None or train is None or len(inside) < 2 or not read.num_bytes:
        return None
    first, last = inside[0], inside[-1]
    from_disk = ((last.read_bytes or 0) - (first.read_bytes or 0)) / max(last.at - first.at, 1e-9)
    per_byte = max(0.0, read.cold_seconds - read.warm_seconds) / read.num_bytes
    waiting = from_disk * breakdown.step_seconds * per_byte / max(1, train.num_workers)
    return WhatIf(
        change="a disk that never makes a read wait",
        step_seconds=breakdown.step_seconds - min(waiting, breakdown.phases.get("data_wait") or 0.0),
        because=f"{from_disk / 1e6:.0f} MB/s come from the disk, and its files take {1e9 * per_byte:.2g} s/GB longer cold",
    )


def _more_memory(run: Run, breakdown: Breakdown, ceiling: Ceiling) -> WhatIf | None:
    need, train = cache_need(run), train_loader(run)
    if need is None or train is None or ceiling.headroom is None:
        return None
    total = sum(s.seconds for s in train.stages)
    kept = sum(s.seconds for s in train.stages if s.name in ("read", "decode"))
    if not total or not kept:
        return None
    saved = min(ceiling.headroom, ceiling.headroom * kept / total)
    place = "memory as it is" if need.fits_share >= 1.0 else f"{format.size(need.total_bytes)} of memory for it"
    return WhatIf(
        change=f"a full cache of decoded samples ({place})",
        step_seconds=breakdown.step_seconds - saved,
        because=f"reading and decoding are {format.share(kept / total)} of the loader's work",
    )
