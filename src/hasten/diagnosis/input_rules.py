"""Rules about loading data, from the disk to the batch.

The causes of a data wait are partly interchangeable: more workers hide slow decoding, and faster decoding needs fewer
workers. If changing one of the loader's options saves most of the headroom, that option is the cause, and the stages get
only what it leaves, so that no time is counted twice. A rule without its input abstains.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hasten import format
from hasten.diagnosis.breakdown import intervention
from hasten.diagnosis.case import WORTH, Case
from hasten.records import Finding, FindingKind, HotLine, Interval, LoaderFacts, Stage

# Share of the headroom from which an option of the loader counts as the cause instead of the stages. More workers only
# hide slow work; too many of them, or too short a queue, is a problem whatever the work is.
SUFFICES = {"too_few_workers": 0.75, "waiting_samples": 0.75, "too_many_workers": 0.5, "shallow_prefetch": 0.5}

STAGE_KINDS: dict[str, FindingKind] = {
    "read": "slow_read",
    "decode": "slow_decode",
    "transform": "slow_transform",
    "getitem": "slow_transform",
    "collate": "slow_collate",
}


def findings(case: Case) -> Iterator[Finding]:
    """All findings about data loading."""
    train = case.train
    if train is None:
        return
    if (startup := _worker_startup(case, train)) is not None:
        yield startup
    if (sampler := _slow_sampler(case, train)) is not None:
        yield sampler
    headroom = case.headroom
    if headroom is None:
        return
    # Batches that are ready and not waited for cost nothing, unless their workers use cores that training needs. A step may
    # wait although some are ready: the next one in order may be missing, or its worker too busy to hand it over.
    if not case.waits and not case.crowding:
        return
    # Threads that spin on the workers' cores also delay batches, which is a finding of its own; so is choosing indices.
    spinning = max((m[0] for t in ("thread_contention", "passive_waiting") if (m := case.measured(t))), default=0.0)
    headroom = max(0.0, headroom - spinning - _sampling(case, train))
    if (transport := _transport(case, train)) is not None:
        yield transport
        headroom = max(0.0, headroom - transport.recoverable)
    if train.in_memory:
        if (found := _python_bound(case, train, headroom)) is not None:
            yield found
        return
    settings = [f for f in (_workers(case, train), _prefetch(case, train)) if f is not None]
    yield from settings
    given = max((f.recoverable for f in settings if f.recoverable >= SUFFICES[f.kind] * headroom), default=0.0)
    if not any(f.kind == "waiting_samples" for f in settings):
        yield from _stages(case, train, headroom - given)


def _sampling(case: Case, train: LoaderFacts) -> float:
    """Seconds per step that choosing indices takes within an epoch."""
    return (train.sampler_seconds or 0.0) * case.batches


def _slow_sampler(case: Case, train: LoaderFacts) -> Finding | None:
    """Choosing which samples come next, which the training process does itself however many workers there are."""
    within, steps = _sampling(case, train), case.facts.steps_per_epoch
    at_start = (train.sampler_start_seconds or 0.0) / steps if steps else 0.0
    saved = min(within + at_start, case.phase("data_wait", "epoch_start"))
    lines = [h for h in case.lines("data_wait") if h.where.function != "__getitem__"]
    return Finding(
        kind="slow_sampler",
        title="Choosing the samples of a batch is slow",
        recoverable=saved,
        interval=_bounded(case, saved),
        confirmed_by="replay" if case.measured("replay") else None,
        because=(
            f"the sampler takes {format.seconds(within)} per step"
            + (f", and {format.seconds(train.sampler_start_seconds or 0.0)} at an epoch's start" if at_start else ""),
            "it runs in the training process, whatever the number of workers",
        ),
        remedy="Choose the indices once per epoch, in whole arrays (torch.randperm, np.argsort, torch.multinomial).",
        where=max(lines, key=lambda h: h.seconds).where if lines else train.where,
    )


def _transport(case: Case, train: LoaderFacts) -> Finding | None:
    """What is left of the wait when workers hand over batches that they need not make."""
    instant, replay = intervention(case.run, "instant samples"), intervention(case.run, "replay")
    if instant is None or replay is None or instant.ratio is None or replay.ratio is None:
        return None
    one, other, choosing = instant.ratio, replay.ratio, _sampling(case, train)
    saved, low, high = (
        case.regular * (with_workers - without) - choosing
        for with_workers, without in ((one.value, other.value), (one.low, other.high), (one.high, other.low))
    )
    if low <= 0:
        return None
    because = [
        f"if workers need not make their batches the step takes {format.seconds(case.regular * one.value)}; "
        f"if they need not hand them over either, {format.seconds(case.regular * other.value)}"
    ]
    if train.bytes_per_batch:
        because.append(f"{format.size(train.bytes_per_batch)} a batch ({', '.join(train.dtypes)})")
    else:
        because.append("a batch has no tensors: all of it is pickled")
    return Finding(
        kind="slow_transport",
        title="Handing batches from workers to training is slow",
        recoverable=saved,
        interval=Interval(value=saved, low=low, high=high),
        confirmed_by="instant samples",
        because=tuple(because),
        remedy="Hand over tensors rather than Python objects, in the smallest dtype, and only what training reads; "
        "or make cheap samples without workers (num_workers=0).",
        where=train.where,
    )


def _worker_startup(case: Case, train: LoaderFacts) -> Finding | None:
    start = case.phase("epoch_start")
    if not train.num_workers or start < WORTH * case.step:
        return None
    measured = case.measured("worker_startup", of=start)
    if measured is None and (case.tried("worker_startup") or (train.persistent_workers and not train.recreated)):
        return None
    # Without a trial: all of it except one ordinary wait.
    steps = case.facts.steps_per_epoch
    choosing = (train.sampler_start_seconds or 0.0) / steps if steps else 0.0
    saved, interval = measured if measured is not None else (max(0.0, 0.9 * start - choosing), None)
    return Finding(
        kind="worker_startup",
        title="Workers restart every epoch",
        recoverable=saved,
        interval=interval,
        confirmed_by="worker_startup" if measured else None,
        because=(
            f"starting an epoch takes {format.seconds(start * steps)}, its {steps:.0f} steps {format.seconds(case.regular * steps)}"
            if steps
            else f"epoch starts take {format.share(start / case.step)} of the time",
        ),
        remedy="Create the DataLoader once, before the epoch loop, with persistent_workers=True."
        if train.recreated
        else "Set persistent_workers=True.",
        where=train.where,
    )


def _python_bound(case: Case, train: LoaderFacts, headroom: float) -> Finding | None:
    wait = case.phase("data_wait")
    gather = case.facts.gather_seconds
    if gather is None or wait < WORTH * case.step:
        return None
    # With workers the wait is not everything: they also use cores that the step needs.
    bound = headroom if train.num_workers else wait - _sampling(case, train)
    saved = max(0.0, bound - gather * case.batches)
    size = train.batch_size or 1
    return Finding(
        kind="python_bound_data",
        title="Data in memory is fetched one sample at a time",
        recoverable=saved,
        interval=_bounded(case, saved),
        confirmed_by="replay" if case.measured("replay") else None,
        because=(
            f"{train.name} indexes tensors in memory, {size} times per batch: {format.seconds(wait)} per step",
            f"gathering the rows of a batch at once takes about {format.seconds(gather)}",
        ),
        remedy="Index the tensors once per batch (data[indices]) instead of using a DataLoader.",
        where=case.where("data_wait") or train.where,
    )


def _bounded(case: Case, saved: float) -> Interval | None:
    replay = case.measured("replay")
    if replay is None:
        return None
    half = (replay[1].high - replay[1].low) / 2
    return Interval(value=saved, low=max(0.0, saved - half), high=saved + half)


def _workers(case: Case, train: LoaderFacts) -> Finding | None:
    titles: dict[FindingKind, str] = {
        "too_few_workers": "Too few workers",
        "too_many_workers": "Too many workers for the cores",
    }
    for kind, title in titles.items():
        measured = case.measured(kind)
        if measured is None:
            continue
        number = _setting(case, kind, "num_workers")
        work = statistics.fmean(train.batch_work_seconds) if train.batch_work_seconds else None
        because = [f"with num_workers={number} instead of {train.num_workers} the step takes {_ratio(case, kind)}"]
        if work is not None and kind == "too_few_workers":
            rest = case.regular - case.phase("data_wait")
            because.append(
                f"a worker needs {format.seconds(work)} per batch, the rest of the step {format.seconds(rest)}"
            )
            if not _samples_wait(train) and (keeping_up := _keeping_up(case, train)):
                because.append(keeping_up)
        if train.num_workers > case.run.machine.num_cores:
            because.append(f"{train.num_workers} workers share {case.run.machine.num_cores:g} cores")
        if kind == "too_few_workers" and _samples_wait(train):
            return _waiting(case, train, measured, because, remedy=f"Set num_workers={number}: {AT_ONCE}.")
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


WAITING = 0.5  # share of the work's time from which it is called waiting
AT_ONCE = "workers that wait need no core of their own"


def _samples_wait(train: LoaderFacts) -> bool:
    """Whether samples wait for something other than a core or a disk: a server, a lock, another process."""
    return bool(train.stages) and train.waiting_share > WAITING and _longest_wait(train.stages).name != "read"


def _longest_wait(stages: Sequence[Stage]) -> Stage:
    return max(stages, key=lambda s: s.seconds - s.cpu_seconds)


def _waiting(
    case: Case, train: LoaderFacts, measured: tuple[float, Interval], because: list[str], *, remedy: str
) -> Finding:
    first = _longest_wait(train.stages)
    number = max(1, train.num_measured_samples)
    text = (
        f"{first.detail or first.name} takes {format.seconds(first.seconds / number)} per sample, "
        f"{format.seconds(first.cpu_seconds / number)} of it on a core"
    )
    line = _worker_line(case, "waiting_samples", first.detail)
    return Finding(
        kind="waiting_samples",
        title="Samples wait instead of computing",
        recoverable=measured[0],
        interval=measured[1],
        confirmed_by="too_few_workers",
        because=(text, *because),
        remedy=remedy,
        where=line.where if line is not None else train.where,
    )


def _keeping_up(case: Case, train: LoaderFacts) -> str:
    """How many cores loading needs to keep up with the rest of the step; "" if one is enough."""
    rest = case.regular - case.phase("data_wait")
    if not train.num_measured_batches or rest <= 0:
        return ""
    work = sum(s.cpu_seconds for s in train.stages) * case.batches / train.num_measured_batches
    number = math.ceil(work / rest - 0.1)  # ignore less than a tenth of a core
    if number < 2:
        return ""
    in_addition = " in addition to those used for training" if case.on_cpu else ""
    return f"loading a step's samples takes {format.seconds(work)} of CPU time: keeping up needs about {number} cores{in_addition}"


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
    if samples := train.sample_seconds:  # hasten's own loader reports batches only
        slow = f"the slowest sample takes {format.seconds(max(samples))}, the median {format.seconds(statistics.median(samples))}"
        because.insert(0, slow)
    return Finding(
        kind="shallow_prefetch",
        title="Prefetch queue too short for uneven samples",
        recoverable=measured[0],
        interval=measured[1],
        confirmed_by="shallow_prefetch",
        because=tuple(because),
        remedy=f"Set prefetch_factor={number}, or make the slow samples cheaper.",
        where=train.where,
    )


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """One kind of work: its stages, and their seconds per step if done by a single worker."""

    kind: FindingKind
    seconds: float
    stages: tuple[Stage, ...]


# Work that depends on an image's size: storing it smaller, or caching it decoded, saves all of it.
BY_SIZE = ("Image.convert", "Image.resize", "Image.thumbnail", "cv2.resize", "cv2.cvtColor", "Resize")


def _kind_of(stage: Stage, *, images: bool) -> FindingKind | None:
    if images and (stage.name == "read" or stage.detail in BY_SIZE):
        return "slow_decode"
    return STAGE_KINDS.get(stage.name)


def _stages(case: Case, train: LoaderFacts, headroom: float) -> Iterator[Finding]:
    """Findings about costly stages, each with the time that the loader would save without it."""
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
        if kind in ("slow_transform", "slow_collate") and _samples_wait(train):
            cost = replace(cost, kind="waiting_samples")
        # Parallel workers: the step takes as long as the loader's work, so it shrinks in proportion. No work costs more
        # than one worker takes for it.
        saved = min(cost.seconds, cost.seconds / total * case.regular) if train.num_workers else cost.seconds
        if case.crowding:
            saved = cost.seconds / total * headroom  # a share of the time that the workers' cores cost
        yield _stage_finding(case, train, cost, min(saved, headroom), total)


def _stage_finding(case: Case, train: LoaderFacts, cost: _Cost, saved: float, total: float) -> Finding:
    samples = max(1, train.num_measured_samples)
    of_kind = [s for s in cost.stages if STAGE_KINDS[s.name] == cost.kind] or cost.stages
    first = max(of_kind, key=lambda s: s.seconds)
    name = first.detail or ("other code in __getitem__" if first.name == "getitem" else first.name)
    because = [f"{name} takes {format.seconds(first.seconds / samples)} per sample"]
    others = [s.detail or s.name for s in cost.stages if s is not first and s.seconds > 0.05 * first.seconds]
    with_others = f"with {', '.join(others)} " if others else "it is "
    because.append(f"{with_others}{format.share(cost.seconds / total)} of the loader's work")
    if case.crowding:
        because.append("batches are ready in time, but the workers use cores that training needs")
    elif cost.seconds >= 0.5 * total and (keeping_up := _keeping_up(case, train)):
        because.append(keeping_up)
    line = _worker_line(case, cost.kind, first.detail)
    title, remedy = _title_and_remedy(case, train, cost.kind, first, because)
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


def _title_and_remedy(case: Case, train: LoaderFacts, kind: str, first: Stage, because: list[str]) -> tuple[str, str]:
    if kind == "slow_read":
        if train.waiting_share > WAITING:
            because.append(
                f"{format.share(train.waiting_share)} of the loader's work is waiting: more workers wait at once"
            )
        read = case.run.file_read
        if read is not None and read.cold_seconds is not None:
            because.append(
                f"the same {read.num_files} files: {format.seconds(read.cold_seconds)} from the disk, {format.seconds(read.warm_seconds)} from memory"
            )
        if first.num_bytes and first.seconds:
            because.append(f"{first.num_bytes / first.seconds / 1e6:.0f} MB/s per worker")
        return (
            "Slow reading",
            "Read less (smaller files, only the rows needed), keep the data in memory, or use a faster disk.",
        )
    if kind == "slow_decode":
        if train.decode_speedup is not None:
            because.append(
                f"the same files with {train.decode_library}: {train.decode_speedup.value:.2f}x faster, same pixels"
            )
        if train.decoded_bytes_per_sample and train.bytes_per_batch and train.batch_size:
            because.append(
                f"{train.decoded_bytes_per_sample / 1e6:.1f} MB are decoded per sample, "
                f"{train.bytes_per_batch / train.batch_size / 1e6:.2f} MB reach the batch"
            )
        gains = train.decode_speedup is not None and train.decode_speedup.low > 1.0
        faster = f"decode with {train.decode_library}, " if gains else ""
        return (
            f"Slow decoding ({first.detail})",
            f"Store the images at the size you train on, {faster}or cache decoded samples.",
        )
    if kind == "waiting_samples":
        because.append(f"{format.share(train.waiting_share)} of that time it waits: no core is at work for it")
        return (
            "Samples wait instead of computing",
            f"Have more samples wait at once (num_workers: {AT_ONCE}), ask for many with one request, or keep the answers.",
        )
    if kind == "slow_collate":
        return "Slow collating", "Let collate_fn stack whole arrays; build each sample's tensors in __getitem__."
    name = first.detail or "__getitem__"
    if first.name == "getitem":
        return "Slow code in __getitem__", "Do it once in advance, vectorize it, or cache its result."
    return (
        f"Slow transform: {name}",
        f"Do {name} once in advance, on smaller images, or on whole batches on the device.",
    )


# Parts of calls that identify a line's kind of work, as common libraries name them.
CALLS = {
    "slow_read": ("open", "read", "load"),
    "slow_decode": ("open", "load", "read", "decode", "convert", "resize", "thumbnail", "image"),
    "slow_collate": ("stack", "cat(", "collate", "from_numpy", "tensor("),
}


def _worker_line(case: Case, kind: str, detail: str) -> HotLine | None:
    """The costliest line of the user's code that does this kind of work; None if no line clearly does."""
    lines = [h for h in case.run.hot_lines if h.in_worker or h.phase == "data_wait"]
    inner = [h for h in lines if h.where.function not in ("", "main", "train")]
    return max((h for h in inner or lines if _does(h, kind, detail)), key=lambda h: h.seconds, default=None)


def _does(line: HotLine, kind: str, detail: str) -> bool:
    source = line.where.source.lower()
    if kind in CALLS:
        return not source or any(call in source for call in CALLS[kind])
    if not detail:  # other code in __getitem__: not known to be another kind of work
        return not any(call in source for call in ("transform", *CALLS["slow_decode"]))
    return not source or "transform" in source or detail.lower().removeprefix("image.") in source
