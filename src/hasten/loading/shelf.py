"""What loaders have kept of a dataset, for the loaders that follow: many scripts make one anew in every epoch.

In: a dataset, what is asked for, a cache. Out: that cache again, as long as the dataset is there. Refuses to hold the dataset,
and to judge whether what was kept is still right.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from hasten.loading.cache.budget import Forecast
from hasten.loading.cache.cache import Cache
from hasten.loading.recipe import PixelRule

Asked = tuple[int | str | None, int | str | None, PixelRule]
"""Memory, disk and pixels: another wish is another cache."""


@dataclass
class Kept:
    """A cache, and of what it is."""

    cache: Cache | None
    forecast: Forecast | None
    fingerprint: bytes
    num_looks: int = 0
    """How often it was asked whether it is still right."""
    owner: int = field(default_factory=os.getpid)


_shelves: WeakKeyDictionary[Any, dict[Asked, Kept]] = WeakKeyDictionary()


def on_shelf(dataset: Any, asked: Asked) -> Kept | None:
    """What was put there; nothing for a forked child, whose parent's it is."""
    try:
        kept = _shelves.get(dataset, {}).get(asked)
    except TypeError:  # a dataset that has no hash
        return None
    return kept if kept is not None and kept.owner == os.getpid() else None


def put_on_shelf(dataset: Any, asked: Asked, kept: Kept) -> None:
    """In the place of what was there."""
    try:
        _shelves.setdefault(dataset, {})[asked] = kept
    except TypeError:  # or cannot be referred to weakly
        return
