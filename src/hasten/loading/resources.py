"""What a loader needs before its first batch: a recipe, a cache, slots, and who makes the samples.

In: a loader's settings. Out: a recipe, slots, a cache and a crew. Refuses to know batches.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, default_collate, default_convert

from hasten.devices import cuda
from hasten.loading.cache.budget import Forecast, available_memory
from hasten.loading.cache.cache import Cache
from hasten.loading.cache.opening import cache_for, is_still_right, log
from hasten.loading.crew.crew import Alone, Crew
from hasten.loading.crew.gil import has_gil, held_share
from hasten.loading.crew.kit import Kit
from hasten.loading.crew.processes import Processes
from hasten.loading.crew.randomness import mix
from hasten.loading.crew.threads import Threads
from hasten.loading.crew.worker import threads_as_there
from hasten.loading.datasets.prefix import Finder
from hasten.loading.epoch.staffing import MOST_PER_CORE, usable_cores
from hasten.loading.memory.arena import Arena
from hasten.loading.memory.nest import Nest, finished
from hasten.loading.memory.slots import Slots
from hasten.loading.recipe import Plain, Recipe
from hasten.loading.settings import Settings
from hasten.loading.shelf import Kept, on_shelf, put_on_shelf, take_off_shelf

SLOTS_SHARE = 0.25  # of the memory that is available when a loader starts
MOST_LOOKS = 16  # at samples of a cache that another loader has filled: is it still right?
LOOK_SECONDS = 1.0  # after which no further look is begun
NUM_TRIED = 16  # samples, to see how much of them holds the interpreter's lock
MOST_HELD = 0.5  # of the interpreter's lock, by all threads together: the training loop needs it as well


@dataclass
class Resources:
    """What stays from one epoch to the next, though the workers go."""

    finder: Finder
    recipe: Recipe
    slots: Slots
    uses_threads: bool
    kept: Kept | None = None
    nest: Nest | None = None
    """What the samples of the last epoch were like."""
    owner: int = field(default_factory=os.getpid)

    @property
    def cache(self) -> Cache | None:
        """Where samples are kept; None where none are."""
        return None if self.kept is None else self.kept.cache

    @property
    def forecast(self) -> Forecast | None:
        """What it will hold."""
        return None if self.kept is None else self.kept.forecast


def renew(loader: DataLoader[Any], settings: Settings, known: Resources | None) -> Resources:
    """For the epoch that begins: the recipe as the dataset is now, and the cache that belongs to it.

    A forked child begins with nothing.
    """
    if known is not None and known.owner != os.getpid():
        known = None
    finder = known.finder if known else Finder(loader.dataset, pixels=settings.pixels, is_for_keeping=settings.keeps)
    recipe = finder.find() if makes_samples(loader) else Plain(loader.dataset)
    uses_threads = _uses_threads(loader, settings, recipe, known)
    in_processes = bool(loader.num_workers) and not uses_threads
    fits = known is not None and known.slots.arena.is_shared == in_processes
    slots = known.slots if known and fits else _slots(loader, settings, is_shared=in_processes)
    kept = None
    if settings.keeps:
        kept = _kept(loader, settings, recipe, finder.reason, known, in_processes=in_processes)
    return Resources(finder, recipe, slots, uses_threads, kept, nest=known.nest if known is not None else None)


def _kept(
    loader: DataLoader[Any],
    settings: Settings,
    recipe: Recipe,
    reason: str | None,
    known: Resources | None,
    *,
    in_processes: bool,
) -> Kept:
    """What this loader or one before it has kept of the dataset, while that is right; else a cache that begins empty.

    What was kept before goes when the last iterator that uses it is gone.
    """
    may_draw_otherwise = loader.worker_init_fn is not None and recipe.draws_globally
    asked = (settings.cache, settings.disk_cache, settings.pixels, recipe.fingerprint, may_draw_otherwise)
    own = known.kept if known is not None else None
    if own is not None and own.asked != asked:
        take_off_shelf(loader.dataset, own)
        own = None
    kept = own or on_shelf(loader.dataset, asked)
    if kept is None or not _is_right(
        kept, recipe, most=1 if own is not None else MOST_LOOKS, in_processes=in_processes
    ):
        if may_draw_otherwise:
            reason = "worker_init_fn may change what its samples draw"
        cache, forecast = _cache(loader, settings, recipe, reason) or (None, None)
        kept = Kept(asked, cache, forecast)
    put_on_shelf(loader.dataset, kept)
    return kept


def _is_right(kept: Kept, recipe: Recipe, *, most: int, in_processes: bool) -> bool:
    """Whether a sample, or for a new loader one in a hundred, is still what was kept of it: those that are kept."""
    if kept.cache is None or kept.forecast is None:
        return True
    until = time.perf_counter() + LOOK_SECONDS
    with threads_as_there(in_processes=in_processes):
        for _ in range(max(1, min(most, kept.forecast.num_samples // 100))):
            kept.num_looks += 1
            index = mix(kept.num_looks) % kept.forecast.num_samples  # another one each time
            if not is_still_right(kept.cache, recipe, index):
                return False
            if time.perf_counter() > until:
                break
    return True


def _cache(
    loader: DataLoader[Any], settings: Settings, recipe: Recipe, reason: str | None
) -> tuple[Cache, Forecast] | None:
    if not recipe.keepable or reason is not None:
        log.warning("nothing of the samples is kept: %s", reason)
        return None
    return cache_for(recipe, loader.dataset, loader.sampler, ram=settings.cache, disk=settings.disk_cache)


def _uses_threads(loader: DataLoader[Any], settings: Settings, recipe: Recipe, known: Resources | None) -> bool:
    if settings.workers != "auto" or not loader.num_workers:
        return settings.workers == "threads"
    if known is not None and known.recipe is recipe:
        return known.uses_threads
    asks_for_processes = loader.worker_init_fn is not None or loader.multiprocessing_context is not None
    if asks_for_processes or not recipe.threadable or loader.collate_fn not in (default_collate, default_convert):
        return False
    if not has_gil():
        return True
    indices = itertools.cycle(range(min(NUM_TRIED, len(loader.dataset))))  # type: ignore[arg-type]
    generator = torch.Generator()

    def make() -> None:
        finished(recipe.complete(recipe.prepare(next(indices)), generator))

    try:
        return held_share(make) * loader.num_workers < MOST_HELD
    except Exception:  # a sample that cannot be made is raised in its place
        return False


def _slots(loader: DataLoader[Any], settings: Settings, *, is_shared: bool) -> Slots:
    # Without `device` nobody knows when the script's own copies are over: torch copies to pinned memory that it follows.
    pins = settings.device is not None and cuda.is_available()
    return Slots(
        Arena(int(available_memory() * SLOTS_SHARE), is_shared=is_shared),
        pin=cuda.pin if pins else None,
    )


def start_crew(loader: DataLoader[Any], settings: Settings, resources: Resources, base_seed: int) -> tuple[Kit, Crew]:
    """Who makes the samples of one iterator, and with what."""
    slots = resources.slots
    kit = Kit(
        dataset=loader.dataset,
        recipe=resources.recipe,
        collate=loader.collate_fn,
        fetches_batches=not makes_samples(loader),
        batched=loader.batch_sampler is not None,
        late_floats=settings.device is not None,
        on_error=settings.on_error,
        base_seed=base_seed,
        num_workers=loader.num_workers,
        most_workers=MOST_PER_CORE * usable_cores() if settings.staffs_itself else loader.num_workers,
        init=loader.worker_init_fn,
        cache=resources.cache,
    )
    if not loader.num_workers:
        return kit, Alone(kit, slots.arena)
    if resources.uses_threads:
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
