"""Loader workers: how many there are, how many batches lie ready for each, and whether they stay."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from hasten.errors import NotApplicableError
from hasten.optimizations.applicable import HANDING_OVER, SLOW_WORK, training_loader
from hasten.optimizations.optimization import (
    LEAST_SECONDS,
    UNMEASURED,
    WORTH,
    Experiment,
    Optimization,
    Proposal,
    Symptoms,
)
from hasten.protocol import Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation
    from hasten.records import LoaderFacts

UNEVEN_SECONDS = 12.0  # window of an experiment where one sample of many is slow
MOST_SECONDS = 20.0  # the same, where an epoch's start must be among its steps
LEAST_PREFETCH, MOST_PREFETCH = 8, 64  # batches a worker
MOST_WAITING = 8  # workers a core, where samples wait
PREFETCH_MEMORY = 0.1  # share of the available memory that batches made ahead may take

# --------------------------------------------------------------------------------------------------------- enabling


def enable_number(handle: Handle, value: Value) -> None:
    """Have so many worker processes make batches; 0: the training process does."""
    from torch.utils.data import IterableDataset

    from hasten.agent.loader_arguments import change_loaders, may_start_processes

    number = int(value)
    if number and not may_start_processes():
        raise NotApplicableError('the script has no `if __name__ == "__main__":`, which workers need on this system')

    def change(given: dict[str, Any]) -> None:
        if isinstance(given.get("dataset"), IterableDataset):
            return  # how its samples are divided among workers is its own affair
        given["num_workers"] = number
        if not number:
            given.update(prefetch_factor=None, persistent_workers=False, timeout=0, multiprocessing_context=None)

    change_loaders(handle, change)


def enable_prefetch(handle: Handle, value: Value) -> None:
    """Have so many batches lie ready for each worker."""
    from hasten.agent.loader_arguments import change_loaders

    def change(given: dict[str, Any]) -> None:
        if given.get("num_workers"):
            given["prefetch_factor"] = int(value)

    change_loaders(handle, change)


def enable_persistent(handle: Handle, _value: Value) -> None:
    """Keep workers from one epoch to the next, seeded for each as new ones would be: samples are the same."""
    from hasten.agent.loader_arguments import keep_workers

    keep_workers(handle)


# ------------------------------------------------------------------------------------------------------- suspecting


def _may_gain_by_number(symptoms: Symptoms) -> bool:
    train = symptoms.train
    if train is None or not symptoms.waits or train.in_memory or train.num_workers > _cores(symptoms):
        return False
    return train.num_workers > 0 or train.start_method == "fork"


def _cores(symptoms: Symptoms) -> int:
    return max(1, int(symptoms.cores))


def _suspect_too_few(symptoms: Symptoms) -> int | None:
    train = symptoms.train
    if train is None or not _may_gain_by_number(symptoms):
        return None
    number = _more_workers(train, symptoms)
    return number if number > train.num_workers else None


def _suspect_too_many(symptoms: Symptoms) -> int | None:
    train = symptoms.train
    return _cores(symptoms) if train is not None and train.num_workers > _cores(symptoms) else None


def _suspect_prefetch(symptoms: Symptoms) -> int | None:
    train = symptoms.train
    if train is None or not symptoms.waits or not train.num_workers or not _uneven(train):
        return None
    number = _deeper_prefetch(train, symptoms)
    return number if number > (train.prefetch_factor or 2) else None


def _suspect_startup(symptoms: Symptoms) -> bool | None:
    train = symptoms.train
    # A loader that is recreated takes its workers with it, persistent or not.
    if train is None or not train.num_workers or train.persistent_workers or train.recreated:
        return None
    return True if symptoms.shares.of("epoch_start") >= WORTH else None


def _startup_seconds(symptoms: Symptoms) -> float:
    """Two epochs' starts are the least to compare."""
    steps = symptoms.facts.steps_per_epoch
    epochs = 3.2 * steps * symptoms.shares.step if steps is not None else 0.0
    return min(MOST_SECONDS, max(LEAST_SECONDS, epochs))


def _more_workers(train: LoaderFacts, symptoms: Symptoms) -> int:
    """As many workers as hide the loader's work behind the rest of the step; beyond the cores only if they wait."""
    shares, cores = symptoms.shares, _cores(symptoms)
    work = statistics.fmean(train.batch_work_seconds) if train.batch_work_seconds else 0.0
    rest = max(1e-4, shares.regular - shares.phases.get("data_wait", 0.0))
    needed = max(1, round(work / rest + 0.5))
    waits = train.waiting_share > 0.5
    return min(needed, MOST_WAITING * cores) if waits else min(max(needed, 2), cores)


def _deeper_prefetch(train: LoaderFacts, symptoms: Symptoms) -> int:
    """Batches a worker, in powers of two, that last the step while one worker makes the slowest; within memory."""
    shares, machine = symptoms.shares, symptoms.machine
    rest = max(1e-4, shares.regular - shares.phases.get("data_wait", 0.0))
    bridged = max(train.batch_work_seconds, default=0.0) / rest / train.num_workers
    room = PREFETCH_MEMORY * machine.memory_available_bytes / max(1, train.bytes_per_batch or 1) / train.num_workers
    depth = 1 << math.ceil(math.log2(max(LEAST_PREFETCH, bridged + 1)))
    return int(min(depth, MOST_PREFETCH, room))


def _uneven(train: LoaderFacts) -> bool:
    samples = train.sample_seconds
    if len(samples) < 20:
        return False
    work = train.batch_work_seconds
    spread = statistics.stdev(work) / statistics.fmean(work) if len(work) > 4 else 0.0
    return spread > 0.3 or max(samples) > 5 * statistics.median(samples)


# -------------------------------------------------------------------------------------------------------- proposing


def _propose_number(situation: Situation) -> list[Proposal] | str:
    train = training_loader(situation)
    fewer = situation.finding("too_many_workers", "thread_contention")
    if isinstance(train, str) and (fewer is None or situation.case.train is None):
        return train
    cores = max(1, int(situation.case.cores))
    facts = situation.case.train
    assert facts is not None
    on = int(situation.settings.get("num_workers", facts.num_workers))
    found: list[Proposal] = []
    for name in ("too_few_workers", "too_many_workers"):
        tried = situation.intervention(name)
        finding = next((f for f in situation.diagnosis.findings if f.confirmed_by == name), None)
        if tried is not None and finding is not None:
            number = int(tried.settings["num_workers"])
            found.append(Proposal(value=number, saves=finding.recoverable, because=finding.title, is_sure=True))
    if not found and not facts.in_memory and on < cores:
        because = f"{on} of {cores} cores make batches while training waits for them"
        saves = situation.headroom * (1 - max(1, on) / (cores + 1))
        if situation.intervention("too_few_workers") is not None:
            saves = min(saves, situation.expected("too_few_workers", saves))
        found.append(Proposal(value=cores, saves=saves, because=because))
    handing_over = situation.finding(*HANDING_OVER)
    if handing_over is not None and on:
        # Without workers nothing is handed over, and the training process does their work.
        saves = handing_over.recoverable - facts.work_seconds * situation.case.batches
        found.append(Proposal(value=0, saves=saves, because=handing_over.title))
    if fewer is not None and on > 1:
        found.append(Proposal(value=1, saves=0.5 * fewer.recoverable, because=fewer.title))
    return [p for p in found if p.value != on] or "there are as many workers as there are cores"


def _propose_prefetch(situation: Situation) -> list[Proposal] | str:
    finding, tried = situation.finding("shallow_prefetch"), situation.intervention("shallow_prefetch")
    if finding is None or tried is None:
        return "a deeper queue would not have helped"
    number = int(tried.settings["prefetch_factor"])
    return [Proposal(value=number, saves=finding.recoverable, because=finding.title, is_sure=True)]


def _propose_persistent(situation: Situation) -> list[Proposal] | str:
    finding = situation.finding("worker_startup")
    if finding is None:
        case, train, start = situation.case, situation.case.train, situation.case.phase("epoch_start")
        restarts = train is not None and train.num_workers and not train.persistent_workers and not train.recreated
        if not restarts or start < WORTH * case.step or case.tried("worker_startup"):
            return "starting workers takes no time worth saving"
        return [Proposal(value=True, saves=0.9 * start, because=UNMEASURED)]
    sure = finding.confirmed_by is not None
    return [Proposal(value=True, saves=finding.recoverable, because=finding.title, is_sure=sure)]


def _cores_left(situation: Situation, number: Value) -> dict[str, Value]:
    """Threads for the cores that workers leave: each of both may gain nothing without the other."""
    case = situation.case
    left = max(1, int(case.run.machine.num_cores) - int(number))
    return {"cpu_threads": left} if case.on_cpu and number and left < case.facts.num_threads else {}


NUM_WORKERS = Optimization(
    name="num_workers",
    title="so many worker processes make batches",
    guarantee="identical",
    answers=("too_few_workers", "too_many_workers", *SLOW_WORK, *HANDING_OVER),
    propose=_propose_number,
    enable=enable_number,
    helped_by=_cores_left,
    kind="number",
    least=0,
    experiments=(
        Experiment(
            cause="too_few_workers",
            suspect=_suspect_too_few,
            title="more loader workers",
            toggled=False,
            spares_loading=True,
            usual=0.5,
        ),
        Experiment(
            cause="too_many_workers",
            suspect=_suspect_too_many,
            title="fewer loader workers",
            toggled=False,
            spares_loading=True,
            usual=0.5,
        ),
    ),
)
PREFETCH_FACTOR = Optimization(
    name="prefetch_factor",
    title="so many batches lie ready for each worker",
    guarantee="identical",
    answers=("shallow_prefetch",),
    propose=_propose_prefetch,
    enable=enable_prefetch,
    kind="number",
    experiments=(
        Experiment(
            cause="shallow_prefetch",
            suspect=_suspect_prefetch,
            title="a longer prefetch queue",
            toggled=False,
            spares_loading=True,
            seconds=lambda _: UNEVEN_SECONDS,
            usual=0.4,
        ),
    ),
)
PERSISTENT_WORKERS = Optimization(
    name="persistent_workers",
    title="workers stay from one epoch to the next",
    guarantee="identical",
    answers=("worker_startup",),
    propose=_propose_persistent,
    enable=enable_persistent,
    experiments=(
        Experiment(
            cause="worker_startup",
            suspect=_suspect_startup,
            title="persistent workers",
            toggled=False,
            seconds=_startup_seconds,
            usual=0.3,
        ),
    ),
)
