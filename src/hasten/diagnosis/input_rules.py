"""Rules about loading data, from the disk to the batch.

The causes of a data wait are partly interchangeable: more workers hide slow decoding, and faster decoding needs fewer
workers. If changing one of the loader's options saves most of the headroom, that option is the cause, and the stages get
only what it leaves, so that no time is counted twice. A rule without its input abstains.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from hasten import format
from hasten.diagnosis import sample_rules
from hasten.diagnosis.breakdown import intervention
from hasten.diagnosis.case import WORTH, Case
from hasten.records import Finding, FindingKind, Interval, LoaderFacts

# Share of the headroom from which an option of the loader counts as the cause instead of the stages. More workers only
# hide slow work; too many of them, or too short a queue, is a problem whatever the work is.
SUFFICES = {"too_few_workers": 0.75, "waiting_samples": 0.75, "too_many_workers": 0.5, "shallow_prefetch": 0.5}


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
    settings = [f for f in (_workers(case, train), _prefetch(case, train)) if f is not None]
    yield from settings
    given = max((f.recoverable for f in settings if f.recoverable >= SUFFICES[f.kind] * headroom), default=0.0)
    if train.in_memory:
        if (found := _python_bound(case, train, headroom - given)) is not None:
            yield found
    elif not any(f.kind == "waiting_samples" for f in settings):
        yield from sample_rules.findings(case, train, min(headroom, _making(case)) - given)


def _making(case: Case) -> float:
    """Seconds per step that making the samples costs at most: what the step saves while workers need not make them."""
    instant = intervention(case.run, "instant samples")
    if instant is None or instant.ratio is None:
        return case.regular
    return case.regular * (1 - instant.ratio.value)


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
        interval=sample_rules.bounded(case, saved),
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
        case.regular * (min(1.0, with_workers) - without) - choosing
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
    # With workers the wait is not everything: they also use cores that the step needs. No work costs more than it takes.
    bound = headroom if train.num_workers else min(headroom, wait - _sampling(case, train))
    if train.num_measured_batches:
        bound = min(bound, train.cpu_seconds * case.batches)
    saved = max(0.0, bound - gather * case.batches)
    size = train.batch_size or 1
    return Finding(
        kind="python_bound_data",
        title="Data in memory is fetched one sample at a time",
        recoverable=saved,
        interval=sample_rules.bounded(case, saved),
        confirmed_by="replay" if case.measured("replay") else None,
        because=(
            f"{train.name} indexes tensors in memory, {size} times per batch: {format.seconds(wait)} per step",
            f"gathering the rows of a batch at once takes about {format.seconds(gather)}",
        ),
        remedy="Index the tensors once per batch (data[indices]) instead of using a DataLoader.",
        where=case.where("data_wait") or train.where,
    )


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
            if not sample_rules.samples_wait(train) and (keeping_up := sample_rules.cores_to_keep_up(case, train)):
                because.append(keeping_up)
        if train.num_workers > case.run.machine.num_cores:
            because.append(f"{train.num_workers} workers share {case.run.machine.num_cores:g} cores")
        if kind == "too_few_workers" and sample_rules.samples_wait(train):
            return _waiting(
                case, train, measured, because, remedy=f"Set num_workers={number}: {sample_rules.AT_ONCE}."
            )
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


def _waiting(
    case: Case, train: LoaderFacts, measured: tuple[float, Interval], because: list[str], *, remedy: str
) -> Finding:
    first = sample_rules.longest_wait(train.stages)
    number = max(1, train.num_measured_samples)
    text = (
        f"{first.detail or first.name} takes {format.seconds(first.seconds / number)} per sample, "
        f"{format.seconds(first.cpu_seconds / number)} of it on a core"
    )
    line = sample_rules.worker_line(case, "waiting_samples", first.detail)
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
