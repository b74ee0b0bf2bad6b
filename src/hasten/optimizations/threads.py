"""Threads of the training process: how many there are, and whether they sleep while they wait for each other."""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING

from hasten.optimizations.optimization import (
    Experiment,
    NotProposed,
    Optimization,
    Problem,
    Proposal,
    Symptoms,
    from_finding,
)
from hasten.protocol import GRADIENT_PHASES, Phase, Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.case import Case
    from hasten.diagnosis.situation import Situation
    from hasten.records import Facts

Function = Callable[..., object]
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
COUNTED: tuple[Phase, ...] = (*GRADIENT_PHASES, "optimizer")  # phases whose operators are counted
SMALL = 50e-6  # seconds of an operator, backward included; sharing a shorter one may take longer than it saves


def enable(handle: Handle, value: Value) -> None:
    """Run operators of the training process on so many threads, whatever the script says."""
    import torch

    if multiprocessing.parent_process() is not None:
        return  # a spawned worker, whose one thread is enough
    before = torch.get_num_threads()
    torch.set_num_threads(int(value))
    handle.patches.on_undo(lambda: torch.set_num_threads(before))
    thread, process = handle.models.thread, os.getpid()

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def set_num_threads(number: int) -> None:
            # Loader workers are forked, or are threads, and keep their one.
            if get_ident() != thread or os.getpid() != process:
                original(number)

        return set_num_threads

    handle.patches.wrap(torch, "set_num_threads", make)


def _free_cores(num_cores: float, num_busy: int) -> int:
    """Cores that busy workers or other programs leave, at least one."""
    return max(1, int(num_cores) - num_busy)


def _suspect_threads(symptoms: Symptoms) -> int | None:
    workers = symptoms.train.num_workers if symptoms.train is not None else 0
    free = _free_cores(symptoms.cores, workers or round(symptoms.shares.others_cpu))
    return free if symptoms.on_cpu and symptoms.facts.num_threads > free else None


def _ready_without_a_core(symptoms: Symptoms) -> float:
    """Seconds per step."""
    return symptoms.facts.run_delay or 0.0


def _are_small(facts: Facts, computing: float) -> bool:
    """Whether several threads share operators that are short on average."""
    return facts.num_threads > 1 and bool(facts.num_operators) and computing < SMALL * (facts.num_operators or 0.0)


def _suspect_sharing(symptoms: Symptoms) -> int | None:
    computing = symptoms.shares.of(*COUNTED) * symptoms.shares.step
    if not symptoms.on_cpu or not _are_small(symptoms.facts, computing) or _suspect_threads(symptoms) == 1:
        return None
    return 1


def _suspect_few(symptoms: Symptoms) -> int | None:
    workers = symptoms.train.num_workers if symptoms.train is not None else 0
    free = _free_cores(symptoms.cores, workers)
    return free if symptoms.on_cpu and symptoms.facts.forced_threads and free > 1 else None


def _suspect_spinning(symptoms: Symptoms) -> str | None:
    workers = symptoms.train.num_workers if symptoms.train is not None else 0
    busy = workers or symptoms.shares.others_cpu > 0.3
    on_linux_cpu = symptoms.on_cpu and symptoms.machine.system.startswith("Linux")
    return "passive" if on_linux_cpu and symptoms.facts.num_threads > 1 and busy else None


def _propose_threads(situation: Situation) -> list[Proposal] | NotProposed | str:
    if not situation.case.on_cpu:
        return "the model is not trained on the CPU"
    likely = 0.05 * situation.case.step
    train = situation.case.train
    busy = int(situation.settings.get("num_workers", train.num_workers if train is not None else 0))
    number = _free_cores(situation.case.cores, busy)
    contended = situation.finding("thread_contention") is not None
    if number > 1 and not contended and _are_small(situation.case.facts, situation.case.phase(*COUNTED)):
        otherwise = "one thread was not measured"
        return from_finding("too_many_threads", value=1, otherwise=otherwise, prior=lambda _: likely)(situation)
    otherwise = "threads and workers do not compete for cores"
    return from_finding(
        "thread_contention", "few_threads", value=number, otherwise=otherwise, prior=lambda _: likely
    )(situation)


def _propose_sleeping(situation: Situation) -> list[Proposal] | NotProposed | str:
    if not situation.case.on_cpu or situation.case.facts.num_threads < 2:
        return "no threads wait for each other on the CPU"
    tried = situation.case.measured("passive_waiting")
    if tried is not None:
        return [Proposal(value="passive", saves=tried[0], because="threads spin while others want their core")]
    likely = 0.03 * situation.case.step
    otherwise = "no other process wants the cores that threads wait on"
    return from_finding("passive_waiting", value="passive", otherwise=otherwise, prior=lambda _: likely)(situation)


def _number_of_threads(value: Value) -> Mapping[str, str]:
    return {"OMP_NUM_THREADS": str(value)}


def _evidence(case: Case) -> Sequence[str]:
    workers = case.train.num_workers if case.train is not None else 0
    threads = "1 thread" if case.facts.num_threads == 1 else f"{case.facts.num_threads} threads"
    return [f"{threads} and {workers} workers on {case.cores:g} cores"]


def _sizes(case: Case) -> Sequence[str]:
    from hasten import format

    operators, computing = case.facts.num_operators, case.phase(*COUNTED)
    if not operators:
        return []
    each = format.seconds(computing / operators)
    return [f"{operators:,.0f} operators per step, {each} each, on {case.facts.num_threads} threads"]


CPU_THREADS = Optimization(
    name="cpu_threads",
    title="operators of the training process run on so many threads",
    guarantee="rounding",
    answers=("thread_contention", "too_many_threads", "few_threads"),
    propose=_propose_threads,
    enable=enable,
    environment=_number_of_threads,
    kind="number",
    experiments=(
        Experiment(
            cause="thread_contention",
            suspect=_suspect_threads,
            settle=2,
            usual=0.12,
            saves_of=COUNTED,
            lost=_ready_without_a_core,
        ),
        Experiment(cause="too_many_threads", suspect=_suspect_sharing, settle=2, usual=0.1, saves_of=COUNTED),
        Experiment(cause="few_threads", suspect=_suspect_few, settle=2, usual=0.3, saves_of=COUNTED),
    ),
    problems=(
        Problem(
            kind="thread_contention",
            title="OpenMP threads compete for cores",
            remedy="Call torch.set_num_threads so that threads and busy workers fit the cores.",
            evidence=_evidence,
        ),
        Problem(
            kind="too_many_threads",
            title="Operators are too small to be shared between threads",
            remedy="Call torch.set_num_threads(1), or give the operators more to do: larger batches, fused modules.",
            evidence=_sizes,
        ),
        Problem(
            kind="few_threads",
            title="torchrun limits each rank to one thread",
            remedy="Set OMP_NUM_THREADS to the cores that each rank has.",
            evidence=_evidence,
        ),
    ),
)
OMP_WAIT = Optimization(
    name="omp_wait",
    title="OpenMP threads sleep while they wait for each other",
    guarantee="identical",
    answers=("thread_contention",),
    propose=_propose_sleeping,
    environment=lambda _: PASSIVE,
    kind="word",
    words=("passive",),
    experiments=(Experiment(cause="passive_waiting", suspect=_suspect_spinning, toggled=False, usual=0.03),),
    problems=(
        Problem(
            kind="thread_contention",
            cause="passive_waiting",
            title="OpenMP threads spin while others need the cores",
            remedy="Set OMP_WAIT_POLICY=PASSIVE in the environment.",
            evidence=_evidence,
        ),
    ),
)
