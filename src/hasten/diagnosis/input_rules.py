"""Rules about the way from the disk to the batch.

In: a Case. Out: findings whose recoverable seconds do not promise the same time twice. Refuses to guess: a rule
without its input abstains.

The causes of a data wait are partly substitutes: more workers hide slow decoding, faster decoding makes do with
fewer workers. Whichever of the loader's settings was tried and gives back most of the headroom stands for it; the
stages then promise only what it leaves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from hasten import format
from hasten.diagnosis.case import WORTH, Case
from hasten.records import Finding, HotLine, Interval, LoaderFacts, Stage

# Share of the headroom with which a setting of the loader is the cause, and the stages are not. More workers only
# hide slow work; too many of them, or too short a queue, is a fault whatever the work is.
SUFFICES = {"too_few_workers": 0.75, "too_many_workers": 0.5, "shallow_prefetch": 0.5}

STAGE_KINDS = {
    "read": "slow_read",
    "decode": "slow_decode",
    "transform": "slow_transform",
    "getitem": "slow_transform",
    "collate": "slow_collate",
}


def findings(case: Case) -> Iterator[Finding]:
    """All findings about the input."""
    train = case.train
    if train is None:
        return
    if (startup := _worker_startup(case, train)) is not None:
        yield startup
    headroom = case.headroom
    if headroom is None:
        return
    # Batches that lie ready and are not waited for cost nothing, unless their workers take cores that training would use.
    # Waited for they may be all the same: the one whose turn it is may be missing among them, or its worker too busy with
    # the next to hand it over.
    if not case.waits and not case.crowding:
        return
    # Threads that spin for the workers' cores make batches late too: a finding of its own.
    spinning = max((m[0] for t in ("thread_contention", "passive_waiting") if (m := case.measured(t))), default=0.0)
    headroom = max(0.0, headroom - spinning)
    if train.in_memory:
        if (found := _python_bound(case, train, headroom)) is not None:
            yield found
        return
    settings = [f for f in (_workers(case, train), _prefetch(case, train)) if f is not None]
    settings.sort(key=lambda f: -f.recoverable)
    yield from settings[:1]
    given = sum(f.recoverable for f in settings[:1] if f.recoverable >= SUFFICES[f.kind] * headroom)
    yield from _stages(case, train, headroom - given)


def _worker_startup(case: Case, train: LoaderFacts) -> Finding | None:
    start = case.phase("epoch_start")
    if not train.num_workers or start < WORTH * case.step:
        return None
    measured = case.measured("worker_startup", of=start)
    if measured is None and (case.tried("worker_startup") or (train.persistent_workers and not train.made_anew)):
        return None
    # Without a trial: all of it but one ordinary wait.
    saved, interval = measured if measured is not None else (start * 0.9, None)
    steps = case.facts.steps_per_epoch
    return Finding(
        kind="worker_startup",
        title="Workers start anew each epoch",
        recoverable=saved,
        interval=interval,
        confirmed_by="worker_startup" if measured else None,
        because=(
            f"an epoch's start takes {format.seconds(start * steps)}, its {steps:.0f} steps {format.seconds(case.regular * steps)}"
            if steps
            else f"epoch starts take {format.share(start / case.step)} of the time",
        ),
        remedy="Make the DataLoader once, before the epochs, with persistent_workers=True."
        if train.made_anew
        else "Set persistent_workers=True.",
        where=train.where,
    )


def _python_bound(case: Case, train: LoaderFacts, headroom: float) -> Finding | None:
    wait = case.phase("data_wait")
    gather = case.facts.gather_seconds
    if gather is None or wait < WORTH * case.step:
        return None
    # With workers the wait is not all: they also take cores from the step.
    bound = headroom if train.num_workers else wait
    saved = max(0.0, bound - gather * case.batches)
    size = train.batch_size or 1
    return Finding(
        kind="python_bound_data",
        title="Data in memory is fetched one sample at a time",
        recoverable=saved,
        interval=_bounded(case, saved),
        confirmed_by="replay" if case.measured("replay") else None,
        because=(
            f"{train.name} indexes tensors it holds, {size} times a batch: {format.seconds(wait)} a step",
            f"gathering the rows of a batch at once takes about {format.seconds(gather)}",
        ),
        remedy="Index the tensors once a batch (data[indices]) instead of through a DataLoader.",
        where=case.where("data_wait") or train.where,
    )


def _bounded(case: Case, saved: float) -> Interval | None:
    replay = case.measured("replay")
    if replay is None:
        return None
    half = (replay[1].high - replay[1].low) / 2
    return Interval(value=saved, low=max(0.0, saved - half), high=saved + half)


def _workers(case: Case, train: LoaderFacts) -> Finding | None:
    for kind, title in (
        ("too_few_workers", "Too few workers"),
        ("too_many_workers", "Too many workers for the cores"),
    ):
        measured = case.measured(kind)
        if measured is None:
            continue
        number = _setting(case, kind, "num_workers")
        work = statistics.fmean(train.batch_work_seconds) if train.batch_work_seconds else None
        because = [f"with num_workers={number} instead of {train.num_workers} the step takes {_ratio(case, kind)}"]
        if work is not None and kind == "too_few_workers":
            rest = case.regular - case.phase("data_wait")
            because.append(
                f"a batch takes a worker {format.seconds(work)}, the rest of the step {format.seconds(rest)}"
            )
            if keeping_up := _keeping_up(case, train):
                because.append(keeping_up)
        if train.num_workers > case.run.machine.num_cores:
            because.append(f"{train.num_workers} workers share {case.run.machine.num_cores:g} cores")
        return Finding(
            kind=kind,
            title=title,
            recoverable=measured[0],
            interval=measured[1],
            confirmed_by=kind,
            because=tuple(because),
            remedy=f"Set num_workers={number}.",
            where=train.where,
        )
    return None


def _keeping_up(case: Case, train: LoaderFacts) -> str:
    """How many cores make batches as fast as the rest of the step takes them; nothing where one does."""
    rest = case.regular - case.phase("data_wait")
    if not train.num_measured_batches or rest <= 0:
        return ""
    work = sum(s.cpu_seconds for s in train.stages) * case.batches / train.num_measured_batches
    number = math.ceil(work / rest - 0.1)  # a tenth of a core more is none
    if number < 2:
        return ""
    beside = " beside those that train" if case.on_cpu else ""
    return f"a step's samples take one core {format.seconds(work)}: keeping up takes about {number} cores{beside}"


def _setting(case: Case, name: str, setting: str) -> str:
    return next(i for i in case.run.interventions if i.name == name).settings[setting]


def _ratio(case: Case, name: str) -> str:
    tried = next(i for i in case.run.interventions if i.name == name)
    assert tried.candidate_seconds is not None and tried.baseline_seconds is not None
    return f"{format.seconds(tried.candidate_seconds)} instead of {format.seconds(tried.baseline_seconds)}"


def _prefetch(case: Case, train: LoaderFacts) -> Finding | None:
    measured = case.measured("shallow_prefetch")
    if measured is None:
        return None
    number = _setting(case, "shallow_prefetch", "prefetch_factor")
    because = [f"with prefetch_factor={number} the step takes {_ratio(case, 'shallow_prefetch')}"]
    if samples := train.sample_seconds:  # hasten's own loader tells of batches
        slow = f"the slowest sample takes {format.seconds(max(samples))}, the median {format.seconds(statistics.median(samples))}"
        because.insert(0, slow)
    return Finding(
        kind="shallow_prefetch",
        title="Prefetch too shallow for uneven samples",
        recoverable=measured[0],
        interval=measured[1],
        confirmed_by="shallow_prefetch",
        because=tuple(because),
        remedy=f"Set prefetch_factor={number}, or make the slow samples cheaper.",
        where=train.where,
    )


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """One kind of work: its stages and seconds a step, were a single worker to do it."""

    kind: str
    seconds: float
    stages: tuple[Stage, ...]


# What an image costs because of its size: whoever stores it smaller, or keeps it decoded, saves all of it.
BY_SIZE = ("Image.convert", "Image.resize", "Image.thumbnail", "cv2.resize", "cv2.cvtColor", "Resize")


def _kind_of(stage: Stage, *, images: bool) -> str | None:
    if images and (stage.name == "read" or stage.detail in BY_SIZE):
        return "slow_decode"
    return STAGE_KINDS.get(stage.name)


def _stages(case: Case, train: LoaderFacts, headroom: float) -> Iterator[Finding]:
    """Stages whose work would not be missed, each promising what the loader's pace would gain without it."""
    if not train.num_measured_batches or (case.share("data_wait") < WORTH and not case.crowding):
        return
    per_step = case.batches / train.num_measured_batches
    total = sum(s.seconds for s in train.stages) * per_step
    if total <= 0:
        return
    decoding = sum(s.seconds for s in train.stages if s.name == "decode")
    images = decoding > sum(s.seconds for s in train.stages if s.name == "read")
    for kind in dict.fromkeys(STAGE_KINDS.values()):
        stages = tuple(s for s in train.stages if _kind_of(s, images=images) == kind)
        cost = _Cost(kind=kind, seconds=sum(s.seconds for s in stages) * per_step, stages=stages)
        if cost.seconds < 0.2 * total:
            continue
        # Workers side by side: the step is as long as the loader's work allows, so it shrinks in proportion.
        saved = cost.seconds / total * case.regular if train.num_workers else cost.seconds
        if case.crowding:
            saved = cost.seconds / total * headroom  # of the cores that the workers take
        yield _stage_finding(case, train, cost, min(saved, headroom), total)


def _stage_finding(case: Case, train: LoaderFacts, cost: _Cost, saved: float, total: float) -> Finding:
    samples = max(1, train.num_measured_samples)
    first = max((s for s in cost.stages if STAGE_KINDS[s.name] == cost.kind), key=lambda s: s.seconds)
    name = first.detail or ("the rest of __getitem__" if first.name == "getitem" else first.name)
    because = [f"{name} takes {format.seconds(first.seconds / samples)} a sample"]
    others = [s.detail or s.name for s in cost.stages if s is not first and s.seconds > 0.05 * first.seconds]
    with_others = f"with {', '.join(others)} " if others else "it is "
    because.append(f"{with_others}{format.share(cost.seconds / total)} of the loader's work")
    if case.crowding:
        because.append("batches lie ready, but their workers take cores that training would use")
    elif cost.seconds >= 0.5 * total and (keeping_up := _keeping_up(case, train)):
        because.append(keeping_up)
    line = _worker_line(case, cost.kind, first.detail)
    title, remedy = _words(case, train, cost.kind, first, because)
    return Finding(
        kind=cost.kind,
        title=title,
        recoverable=saved,
        interval=_bounded(case, saved),
        confirmed_by="replay" if case.measured("replay") else None,
        because=tuple(because),
        remedy=remedy,
        where=line.where if line is not None else train.where,
    )


def _words(case: Case, train: LoaderFacts, kind: str, first: Stage, because: list[str]) -> tuple[str, str]:
    if kind == "slow_read":
        read = case.run.file_read
        if read is not None and read.cold_seconds is not None:
            because.append(
                f"the same {read.num_files} files: {format.seconds(read.cold_seconds)} from the disk, {format.seconds(read.warm_seconds)} again"
            )
        if first.num_bytes and first.seconds:
            because.append(f"{first.num_bytes / first.seconds / 1e6:.0f} MB/s a worker")
        return (
            "Slow reading",
            "Read less (smaller files, only the rows needed), keep the data in memory, or use a faster disk.",
        )
    if kind == "slow_decode":
        if train.decode_speedup is not None:
            because.append(
                f"the same files with {train.decode_library}: {train.decode_speedup.value:.2f}x as fast, same pixels"
            )
        if train.decoded_bytes_per_sample and train.bytes_per_batch and train.batch_size:
            because.append(
                f"{train.decoded_bytes_per_sample / 1e6:.1f} MB are decoded a sample, "
                f"{train.bytes_per_batch / train.batch_size / 1e6:.2f} MB reach the batch"
            )
        gains = train.decode_speedup is not None and train.decode_speedup.low > 1.0
        faster = f"decode with {train.decode_library}, " if gains else ""
        return (
            f"Slow decoding ({first.detail})",
            f"Store the images at the size you train on, {faster}or cache decoded samples.",
        )
    if kind == "slow_collate":
        return "Slow collating", "Let collate_fn stack whole arrays; build each sample's tensors in __getitem__."
    name = first.detail or "__getitem__"
    if first.name == "getitem":
        return "Slow code in __getitem__", "Do it once beforehand, vectorise it, or cache its result."
    return (
        f"Slow transform: {name}",
        f"Do {name} once beforehand, on smaller images, or on whole batches on the device.",
    )


# What a line of each kind of work calls, as the field's libraries name it.
CALLS = {
    "slow_read": ("open", "read", "load"),
    "slow_decode": ("open", "load", "read", "decode", "convert", "resize", "thumbnail", "image"),
    "slow_collate": ("stack", "cat(", "collate", "from_numpy", "tensor("),
}


def _worker_line(case: Case, kind: str, detail: str) -> HotLine | None:
    """The costliest line of the user's that does this kind of work; None where no line is sure to."""
    lines = [h for h in case.run.hot_lines if h.in_worker or h.phase == "data_wait"]
    inner = [h for h in lines if h.where.function not in ("", "main", "train")]
    return max((h for h in inner or lines if _does(h, kind, detail)), key=lambda h: h.seconds, default=None)


def _does(line: HotLine, kind: str, detail: str) -> bool:
    source = line.where.source.lower()
    if kind in CALLS:
        return not source or any(call in source for call in CALLS[kind])
    if not detail:  # the rest of __getitem__: what is not known to be another kind of work
        return not any(call in source for call in ("transform", *CALLS["slow_decode"]))
    return not source or "transform" in source or detail.lower().removeprefix("image.") in source
