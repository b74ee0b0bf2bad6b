"""A cache for a loader: how large it will be, what it will hold, and whether what it holds is still right.

In: a recipe, a sampler, budgets. Out: a cache and its forecast. Refuses to know batches and workers.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import WeightedRandomSampler

from hasten.loading.cache.budget import Forecast, Measured, disk_budget, forecast, ram_budget
from hasten.loading.cache.cache import Cache, open_cache
from hasten.loading.cache.disk_tier import samples_folder
from hasten.loading.cache.parcel import size_of
from hasten.loading.cache.rendezvous import host_key
from hasten.loading.datasets.watching import still_holds
from hasten.loading.failures import file_size
from hasten.loading.memory.packing import PackError, pack
from hasten.loading.recipe import Recipe

NUM_MEASURED = 16  # samples
MEASURE_SECONDS = 1.0

log = logging.getLogger("hasten")

Budget = int | str | None
"""Bytes, "8 GiB", "50%" or "auto"; None: nothing is kept there."""


def cache_for(
    recipe: Recipe, dataset: Any, sampler: object, *, ram: Budget, disk: Budget
) -> tuple[Cache, Forecast] | None:
    """A cache for what the recipe prepares, and what it will hold; None where none of a few samples can be kept.

    What it will hold is said before it is filled, by the logger `hasten`. Raises BudgetError.
    """
    num_samples = len(dataset)
    measured = list(_measure(recipe, dataset, num_samples))
    if not measured:
        return None
    has_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    ram_bytes = 0 if ram is None else ram_budget(None if ram == "auto" else ram, for_ranks=has_ranks)
    disk_bytes = 0 if disk is None else _disk_bytes(disk)
    budgets = [(name, size) for name, size in (("ram", ram_bytes), ("disk", disk_bytes)) if size]
    weights = sampler.weights.tolist() if type(sampler) is WeightedRandomSampler else None
    expected = forecast(measured, num_samples=num_samples, budgets=budgets, weights=weights)
    log.info(expected.line())
    cache = open_cache(
        recipe,
        num_samples=num_samples,
        ram_bytes=ram_bytes,
        disk_bytes=disk_bytes,
        host_key=host_key(recipe, num_samples=num_samples) if has_ranks else None,
        forecast=expected,
        weights=weights,
    )
    return cache, expected


def _disk_bytes(disk: int | str) -> int:
    """Bytes that may be kept on disk; 0, and a warning, where there is no folder for them. Raises BudgetError."""
    try:
        return disk_budget(samples_folder(), None if disk == "auto" else disk)
    except (OSError, RuntimeError) as error:  # it cannot be read; there is no home folder
        warnings.warn(f"no samples are kept on disk: {error}; HASTEN_CACHE names another folder", stacklevel=2)
        return 0


def _measure(recipe: Recipe, dataset: Any, num_samples: int) -> Iterator[Measured]:
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


def is_still_right(cache: Cache, recipe: Recipe, index: int) -> bool:
    """Whether what is kept of a sample is still what is prepared; if not, all that is kept is thrown away.

    True where nothing is kept of it.
    """

    def compare(prepared: Any) -> bool:
        return still_holds(recipe, index, prepared)

    try:
        is_right = cache.held(index, recipe, use=compare)
    except Exception:  # a sample that cannot be made is raised in its place
        return True
    if is_right is False:
        log.warning("sample %d is not what was kept of it: all that was kept is thrown away", index)
        cache.clear()
    return is_right is not False
