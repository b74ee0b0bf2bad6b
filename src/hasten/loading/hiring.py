"""What a loader needs before its first batch: a recipe, a cache, slots, and who makes the samples.

In: a loader's settings. Out: a kit, slots and a crew. Refuses to know batches.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler, default_collate, default_convert

from hasten.loading.cache.budget import Forecast, Measured, available_memory, disk_budget, forecast, ram_budget
from hasten.loading.cache.cache import Cache, open_cache
from hasten.loading.cache.disk_tier import samples_folder
from hasten.loading.cache.parcel import size_of
from hasten.loading.cache.rendezvous import host_key
from hasten.loading.crew.crew import Alone, Crew
from hasten.loading.crew.gil import has_gil, held_share
from hasten.loading.crew.kit import Kit
from hasten.loading.crew.processes import Processes
from hasten.loading.crew.randomness import mix
from hasten.loading.crew.threads import Threads
from hasten.loading.datasets.prefix import Finder
from hasten.loading.datasets.watching import still_holds
from hasten.loading.epoch.staffing import MOST_PER_CORE, usable_cores
from hasten.loading.epoch.transfer import consumed, pin
from hasten.loading.failures import file_size
from hasten.loading.memory.arena import Arena
from hasten.loading.memory.nest import Nest, finished
from hasten.loading.memory.packing import PackError, pack
from hasten.loading.memory.slots import Slots
from hasten.loading.recipe import Plain, Recipe
from hasten.loading.settings import Settings

SLOTS_SHARE = 0.25  # of the memory that is available when a loader starts
NUM_MEASURED = 16  # samples, for the forecast of a cache
MEASURE_SECONDS = 1.0
MOST_HELD = 0.5  # of the interpreter's lock, by all threads together: the training loop needs it as well

log = logging.getLogger("hasten")


@dataclass
class House:
    """What stays from one epoch to the next, though the workers go."""

    finder: Finder
    recipe: Recipe
    slots: Slots
    uses_threads: bool
    cache: Cache | None
    forecast: Forecast | None
    nest: Nest | None = None
    """What the samples of the last epoch were like."""
    num_samples: int = 0
    num_epochs: int = 0
    owner: int = field(default_factory=os.getpid)


def furnish(loader: DataLoader[Any], settings: Settings, known: House | None) -> House:
    """The recipe as the dataset is now, and the cache that belongs to it. A forked child has a house of its own."""
    if known is not None and known.owner != os.getpid():
        known = None
    keeps = settings.cache is not None or settings.disk_cache is not None
    finder = known.finder if known else Finder(loader.dataset, pixels=settings.pixels, is_for_keeping=keeps)
    recipe = finder.find() if makes_samples(loader) else Plain(loader.dataset)
    uses_threads = _uses_threads(loader, settings, recipe, known)
    in_processes = bool(loader.num_workers) and not uses_threads
    if known is not None and known.slots.arena.is_shared == in_processes:
        slots = known.slots
    else:
        slots = _slots(loader, settings, is_shared=in_processes)
    # What was kept for a recipe of another fingerprint goes when the last iterator that uses it is gone.
    if known is not None and known.recipe.fingerprint == recipe.fingerprint and _still_holds(known):
        kept = known.cache, known.forecast
    else:
        kept = _cache(loader, settings, recipe, finder.reason)
    cache, expected = kept
    house = House(finder, recipe, slots, uses_threads, cache, expected)
    if expected is not None:
        house.num_samples = expected.num_samples
    if known is not None:
        house.nest, house.num_epochs = known.nest, known.num_epochs + 1
    return house


def _still_holds(house: House) -> bool:
    """Whether what is kept is still what is prepared: one sample is looked at, another one each epoch."""
    if house.cache is None:
        return True
    recipe, index = house.recipe, mix(house.num_epochs) % house.num_samples

    def compare(prepared: Any) -> bool:
        return still_holds(recipe, index, prepared)

    try:
        holds = house.cache.get(index, recipe, use=compare)
    except Exception:  # a sample that cannot be made is raised in its place
        return True
    if not holds:
        log.warning("sample %d is not what was kept of it: all that was kept is thrown away", index)
        house.cache.clear()
    return holds


def _uses_threads(loader: DataLoader[Any], settings: Settings, recipe: Recipe, known: House | None) -> bool:
    if settings.workers != "auto" or not loader.num_workers:
        return settings.workers == "threads"
    if known is not None and known.recipe is recipe:
        return known.uses_threads
    asks_for_processes = loader.worker_init_fn is not None or loader.multiprocessing_context is not None
    if asks_for_processes or not recipe.threadable or loader.collate_fn not in (default_collate, default_convert):
        return False
    if not has_gil():
        return True
    indices = itertools.cycle(range(min(NUM_MEASURED, len(loader.dataset))))  # type: ignore[arg-type]
    generator = torch.Generator()

    def make() -> None:
        finished(recipe.complete(recipe.prepare(next(indices)), generator))

    try:
        return held_share(make) * loader.num_workers < MOST_HELD
    except Exception:  # a sample that cannot be made is raised in its place
        return False


def _slots(loader: DataLoader[Any], settings: Settings, *, is_shared: bool) -> Slots:
    pins = (loader.pin_memory or settings.device is not None) and torch.cuda.is_available()
    return Slots(
        Arena(int(available_memory() * SLOTS_SHARE), is_shared=is_shared),
        pin=pin if pins else None,
        when_returned=consumed if pins else None,
    )


def _cache(
    loader: DataLoader[Any], settings: Settings, recipe: Recipe, reason: str | None
) -> tuple[Cache | None, Forecast | None]:
    if settings.cache is None and settings.disk_cache is None:
        return None, None
    if loader.worker_init_fn is not None and recipe.draws_globally:
        reason = "worker_init_fn may change what its samples draw"
    if not recipe.keepable or reason is not None:
        log.warning("nothing of the samples is kept: %s", reason)
        return None, None
    num_samples = len(loader.dataset)  # type: ignore[arg-type]
    measured = list(_measure(loader.dataset, recipe, num_samples))
    if not measured:
        return None, None
    has_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    ram = disk = 0
    if settings.cache is not None:
        ram = ram_budget(None if settings.cache == "auto" else settings.cache, for_ranks=has_ranks)
    if settings.disk_cache is not None:
        disk = disk_budget(samples_folder(), None if settings.disk_cache == "auto" else settings.disk_cache)
    budgets = [(name, size) for name, size in (("ram", ram), ("disk", disk)) if size]
    weights = loader.sampler.weights.tolist() if type(loader.sampler) is WeightedRandomSampler else None
    expected = forecast(measured, num_samples=num_samples, budgets=budgets, weights=weights)
    log.info(expected.line())
    key = host_key(recipe, num_samples=num_samples) if has_ranks else None
    cache = open_cache(
        recipe,
        num_samples=num_samples,
        ram_bytes=ram,
        disk_bytes=disk,
        host_key=key,
        forecast=expected,
        weights=weights,
    )
    return cache, expected


def _measure(dataset: Any, recipe: Recipe, num_samples: int) -> Iterator[Measured]:
    """A few samples from all over the dataset, prepared once."""
    until = time.perf_counter() + MEASURE_SECONDS
    step = max(1, num_samples // NUM_MEASURED)
    for index in islice(range(step // 2, num_samples, step), NUM_MEASURED):
        began = time.perf_counter()
        try:
            size = size_of(pack(recipe.prepare(index)))
        except (PackError, OSError, ValueError, RuntimeError):
            continue  # it is raised again in its place
        now = time.perf_counter()
        yield Measured(size, now - began, file_size(dataset, index))
        if now > until:
            return


def hire(loader: DataLoader[Any], settings: Settings, house: House, base_seed: int) -> tuple[Kit, Crew]:
    """A crew for one iterator."""
    slots = house.slots
    kit = Kit(
        dataset=loader.dataset,
        recipe=house.recipe,
        collate=loader.collate_fn,
        fetches_batches=not makes_samples(loader),
        batched=loader.batch_sampler is not None,
        late_floats=settings.device is not None,
        on_error=settings.on_error,
        base_seed=base_seed,
        num_workers=loader.num_workers,
        most_workers=MOST_PER_CORE * usable_cores() if settings.staffs_itself else loader.num_workers,
        init=loader.worker_init_fn,
        cache=house.cache,
    )
    if not loader.num_workers:
        return kit, Alone(kit, slots.arena)
    if house.uses_threads:
        return kit, Threads(kit, slots.arena)
    return kit, Processes(kit, slots, context=loader.multiprocessing_context)


def makes_samples(loader: DataLoader[Any]) -> bool:
    """Samples are made one by one, not by a dataset that makes whole batches."""
    dataset: Any = loader.dataset
    while type(dataset) is Subset:  # it asks its dataset, and goes one by one where that has no such method
        dataset = dataset.dataset
    return loader.batch_sampler is None or not getattr(dataset, "__getitems__", None)


def makes_rows(loader: DataLoader[Any]) -> bool:
    """Samples go to their rows of a batch one by one: nothing of the user's makes the batch as a whole."""
    return loader.batch_sampler is not None and loader.collate_fn is default_collate and makes_samples(loader)
