"""What loaders have kept of a dataset, for the loaders that follow: many scripts make one anew in every epoch.

In: a dataset, what is asked of it, a cache. Out: that cache again, as long as the dataset is there. Refuses to hold the
dataset, and to judge whether what was kept is still right.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hasten.loading.cache.budget import Forecast
from hasten.loading.cache.cache import Cache

MOST = 2  # caches of one dataset: it may alternate between two states


@dataclass
class Kept:
    """A cache, and of what it is."""

    asked: tuple[object, ...]
    """How much memory and disk, which pixels, by which recipe: another wish is another cache."""
    cache: Cache | None
    forecast: Forecast | None
    num_looks: int = 0
    """How often it was asked whether it is still right."""
    owner: int = field(default_factory=os.getpid)


_shelves: dict[int, list[Kept]] = {}  # by the dataset's id, for equal datasets need not be the same


def on_shelf(dataset: Any, asked: tuple[object, ...]) -> Kept | None:
    """What was put there; nothing for a forked child, whose parent's it is."""
    found = (kept for kept in _shelves.get(id(dataset), ()) if kept.asked == asked and kept.owner == os.getpid())
    return next(found, None)


def put_on_shelf(dataset: Any, kept: Kept) -> None:
    """Beside the one that was put there last, in the place of those before."""
    shelf = _shelves.get(id(dataset))
    if shelf is None:
        try:
            weakref.finalize(dataset, _shelves.pop, id(dataset), None).atexit = False
        except TypeError:  # it cannot be referred to weakly, so nobody would clear its shelf
            return
        shelf = _shelves[id(dataset)] = []
    shelf[:] = [*(other for other in shelf if other.asked != kept.asked), kept][-MOST:]


def take_off_shelf(dataset: Any, kept: Kept) -> None:
    """Its loader wants another one now."""
    shelf = _shelves.get(id(dataset), [])
    shelf[:] = [other for other in shelf if other is not kept]


def caches_on_shelves() -> Iterator[Cache]:
    """All of this process's."""
    for shelf in list(_shelves.values()):
        yield from (kept.cache for kept in shelf if kept.cache is not None and kept.owner == os.getpid())
