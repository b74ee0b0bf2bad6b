"""How the launches of a comparison are made: for how long, with which seed, and on warm caches where something is cached."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hasten.diagnosis.breakdown import USABLE_MEMORY
from hasten.diagnosis.case import Case
from hasten.diagnosis.situation import Situation
from hasten.launch.turns import POSSIBLE
from hasten.optimizations.catalog import GROUPS, specs_of, start_seconds_of
from hasten.protocol import LaunchSpec
from hasten.records import Phase, Settings
from hasten.stats import LOOKS

SEED = 20_000
KEEPING = {"cache", "disk_cache", "pure"}  # fixes that gain from the second epoch on
EVERY_STEP = {one.name for group in ("Precision", "Execution") for one in GROUPS[group]} - {"no_grad_validation"}
WEIGHS, WEIGHS_MUCH = 0.05, 0.3  # share of the time from which what comes rarely must come in a launch
TRIAL_SECONDS = 60.0  # that a trial takes, as a rule
WARM_LIMIT = 6.0  # seconds that the first pass over the repeated batches should take without the plan
FEWEST_REPEATED, MOST_REPEATED = 4, 64  # batches
QUEUES = 2  # times the length of a queue, in steps: how long a setting that changes it is measured
LONGEST_FOR_QUEUES = 12.0  # seconds that this may take
MEMORY_FOR_TWO = 2.5  # times what the script was seen to take, for two launches of it


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """How launches are made."""

    seconds: float = 3.0  # of steps that count
    repeated_batches: int | None = None  # the same over and over, measured once each has come
    warm_steps: int = 0  # until then
    warm_seconds: float = 20.0  # that these may take
    cache_bytes: int | None = None  # of "auto": as large for the repeated batches as the machine's memory is for all
    most_pairs: int = 16
    turns: bool = False  # both sides of a pair at once, one working at a time


def config_for(first: Situation, settings: Settings, *, added: Settings | None = None) -> TrialConfig:
    """How long launches measure: so that what comes rarely, and weighs, comes in them; warm where something is kept.

    `added`: what a trial is about. Where it changes every step alike, steps show it, and what comes rarely must weigh much.
    """
    case, facts = first.case, first.case.facts
    queue = _queue_length(case, settings)
    seconds = max(TrialConfig.seconds, min(LONGEST_FOR_QUEUES, QUEUES * queue * case.step))
    weighs = WEIGHS_MUCH if added and EVERY_STEP.issuperset(added) else WEIGHS
    periods: dict[Phase, float | None] = {
        "epoch_start": facts.steps_per_epoch,
        "validation": facts.steps_per_validation,
    }
    for phase, period in periods.items():
        if not period:
            continue
        # An epoch's last steps only take what lies ready, and the next one's start pays for that.
        least = 0.0 if phase == "epoch_start" and queue >= WEIGHS * period else weighs
        if case.share(phase) >= least:
            # Twice where it comes often; once where steps are slow, for a search has to end.
            seconds = max(seconds, min(20.0, 2.2 * period * case.step, max(6.0, 1.2 * period * case.step)))
    seconds = max(seconds, min(8.0, 5 * case.step), 2 * case.step)  # what a launch may take follows from this
    turns = _can_take_turns(case)
    if not KEEPING & {*settings}:
        return TrialConfig(seconds=seconds, turns=turns)
    number = int(min(MOST_REPEATED, max(FEWEST_REPEATED, WARM_LIMIT / max(case.step, 1e-4))))
    return TrialConfig(
        seconds=seconds,
        repeated_batches=math.ceil(number * max(1.0, case.batches)),
        warm_steps=number + 1,
        warm_seconds=3 * max(WARM_LIMIT, number * case.step),
        cache_bytes=_cache_bytes(first, math.ceil(number * max(1.0, case.batches))),
        turns=turns,
    )


def _queue_length(case: Case, settings: Settings) -> float:
    """Steps that a full queue of batches lasts, where the settings change its length; 0 where they do not."""
    if case.train is None or not {"num_workers", "prefetch_factor"} & {*settings}:
        return 0.0
    workers = int(settings.get("num_workers", case.train.num_workers))
    return workers * int(settings.get("prefetch_factor", case.train.prefetch_factor or 2)) / max(1.0, case.batches)


def trial_seconds(first: Situation, added: Settings) -> float:
    """What a trial of these takes, as a rule: the fewest pairs that can be clear, where those take long."""
    return max(TRIAL_SECONDS, min(LOOKS) * pair_seconds(first, added)) + start_seconds_of(added)


def pair_seconds(first: Situation, added: Settings | None = None) -> float:
    """What a pair of launches takes, as a rule: those that take turns start together."""
    config, start = config_for(first, added or {}, added=added), first.case.run.first_step_seconds or 0.0
    steps = config.seconds + config.warm_steps * first.case.step
    return start + 2 * steps if config.turns else 2 * (start + steps)


def _cache_bytes(first: Situation, num_batches: int) -> int | None:
    """The part of the memory that so many batches of the whole set would have: a set that does not fit misses here too."""
    need, train = first.diagnosis.cache, first.case.train
    if need is None or train is None or not train.batch_size:
        return None
    share = min(1.0, num_batches * train.batch_size / need.num_samples)
    return int(share * USABLE_MEMORY * first.case.run.machine.memory_available_bytes)


def _can_take_turns(case: Case) -> bool:
    """Whether two launches may be there at once: one process trains, on the CPU, and there is memory for two."""
    run = case.run
    peak = max((sample.resident_bytes for sample in run.resources), default=math.inf)
    is_python = run.command[0] == "-m" or run.command[0].endswith(".py")
    alone = run.facts.num_training_processes == 1 and case.on_cpu
    return POSSIBLE and is_python and alone and MEMORY_FOR_TWO * peak < run.machine.memory_available_bytes


def spec_of(settings: Settings, config: TrialConfig, *, quality: int = 0, shift: int = 0) -> LaunchSpec:
    """What the processes of one side of a comparison are to do."""
    base = base_spec(settings, config)
    return replace(base, mode="plain", seconds=config.seconds, shift=shift, quality=quality)


def base_spec(settings: Settings, config: TrialConfig) -> LaunchSpec:
    """What processes under these settings are to do, whatever they are launched for."""
    keeps = config.repeated_batches is not None  # what is kept is to be there when they measure
    return LaunchSpec(
        fixes=specs_of(_limited(settings, config)),
        start_seconds=start_seconds_of(settings),
        seed=SEED,
        repeated_batches=config.repeated_batches,
        warm_steps=config.warm_steps if keeps else 0,
        warm_seconds=config.warm_seconds if keeps else 0.0,
    )


def _limited(settings: Settings, config: TrialConfig) -> Settings:
    if config.cache_bytes is None or settings.get("cache") != "auto":
        return settings
    return {**settings, "cache": config.cache_bytes}
