"""Nothing is prepared twice: a sample's prepared value from the nearest tier that has it, or else prepared and kept.

In: tiers, nearest first; a sample's position and the recipe that prepares it. Out: what the caller makes of the
prepared value. Refuses to know how samples are prepared and how a tier keeps them.

Which tier takes a sample: the nearest one that has room and for which the sample is worthy enough (see `forecast`).
Each sample is kept once, unless the last tier has room for all of them: then it gets all, and what it has from an
earlier run is taken nearer again.
"""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hasten.loading.cache.budget import Forecast
from hasten.loading.cache.counters import Counters
from hasten.loading.cache.disk_tier import DiskTier
from hasten.loading.cache.parcel import Opened, size_of
from hasten.loading.cache.ram_tier import RamTier
from hasten.loading.cache.tiers import MISSING, Missing, Tier
from hasten.loading.generators import snapshot
from hasten.loading.memory.packing import Packed, PackError, pack
from hasten.loading.recipe import Recipe

R = TypeVar("R")


@dataclass(frozen=True)
class TierCounts:
    """What one tier did, in all processes."""

    name: str
    num_hits: int
    num_fills: int
    num_bytes: int
    """What it takes now."""
    budget: int
    """Bytes that it may take."""
    seconds_saved: float
    """What it took, or would have taken, to prepare what was hit."""


@dataclass(frozen=True)
class CacheCounts:
    """What a cache did, in all processes."""

    num_misses: int
    seconds_preparing: float
    tiers: tuple[TierCounts, ...]

    @property
    def hit_rate(self) -> float | None:
        """Of all samples asked for, those that a tier had, 0..1; None before the first."""
        hits = sum(tier.num_hits for tier in self.tiers)
        return hits / (hits + self.num_misses) if hits + self.num_misses else None


class Cache:
    """A chain of tiers, nearest first.

    `forecast` tells which samples are worthy of which tier; without it all are. `weights`: how often each sample is
    asked for, in place of the seconds that it saves per byte. Usable after a fork, and picklable to a process while
    that is started.
    """

    def __init__(
        self, tiers: Sequence[Tier], *, forecast: Forecast | None = None, weights: Sequence[float] | None = None
    ) -> None:
        self._tiers = tuple(tiers)
        self._weights = weights
        self._thresholds = _thresholds(self._tiers, forecast)
        self._num_samples = forecast.num_samples if forecast else 0
        # In the last tier a value may take a few blocks more than its bytes.
        self._last_has_all = bool(tiers) and forecast is not None and forecast.full_bytes * 1.1 < tiers[-1].budget
        kinds = ("hits", "fills", "seconds", "failed")
        self._counters = Counters(
            ["misses", "preparing", *(f"{kind}{at}" for kind in kinds for at in range(len(tiers)))]
        )

    def get(self, index: int, recipe: Recipe, *, use: Callable[[Any], R]) -> R:
        """What `use` makes of the prepared value of a sample; `index` is its position, from 0.

        `use` must not return anything that views the value, for a tier may give its memory back. Where that happens
        meanwhile, `use` is called once more, so it must begin by seeding what it draws from. What the recipe and `use`
        raise is passed on.
        """
        keys: list[bytes | None] = []
        for at, tier in enumerate(self._tiers):
            key = tier.key(index, recipe)
            keys.append(key)
            if key is None:
                continue

            def hit(value: Any, opened: Opened, at: int = at) -> R:
                self._counters.add(**{f"hits{at}": 1, f"seconds{at}": opened.seconds})
                if self._last_has_all:
                    self._keep(index, keys[:at], opened.packed, opened.seconds)
                return use(value)

            found = tier.get(key, hit)
            if found is not MISSING:
                return found
        before = snapshot()
        began = time.perf_counter()
        value = recipe.prepare(index)
        seconds = time.perf_counter() - began
        self._counters.add(misses=1, preparing=seconds)
        # What drew from a generator after all, though it never did while it was watched, is not the same every time.
        if snapshot() == before and not all(key is None or tier.is_full for tier, key in zip(self._tiers, keys)):
            with suppress(PackError):  # what cannot be kept is prepared each time
                self._keep(index, keys, pack(value), seconds)  # before `use`, which may write to the value
        return use(value)

    def held(self, index: int, recipe: Recipe, *, use: Callable[[Any], R]) -> R | Missing:
        """What `use` makes of the value where a tier has it, else MISSING. A look, which is not counted."""
        for tier in self._tiers:
            key = tier.key(index, recipe)
            found = MISSING if key is None else tier.get(key, lambda value, _: use(value))
            if found is not MISSING:
                return found
        return MISSING

    def counts(self) -> CacheCounts:
        """What was done so far, in all processes."""
        total = self._counters.total
        tiers = tuple(
            TierCounts(
                name=tier.name,
                num_hits=int(total(f"hits{at}")),
                num_fills=int(total(f"fills{at}")),
                num_bytes=tier.num_bytes,
                budget=tier.budget,
                seconds_saved=total(f"seconds{at}"),
            )
            for at, tier in enumerate(self._tiers)
        )
        return CacheCounts(int(total("misses")), total("preparing"), tiers)

    def relieve(self) -> int:
        """Give memory back where the machine or the control group is short of it; return bytes. Call it now and then."""
        return sum(tier.relieve() for tier in self._tiers)

    def clear(self) -> None:
        """Make room for what another recipe prepares. What the old one prepared is never served for the new one."""
        for tier in self._tiers:
            tier.clear()

    def close(self) -> None:
        """Let go of all tiers in this process."""
        for tier in self._tiers:
            tier.close()
        self._counters.close()

    def _keep(self, index: int, keys: Sequence[bytes | None], packed: Packed, seconds: float) -> None:
        """Offer a value to the tiers that the keys are for, nearest first."""
        worth = seconds / size_of(packed) if self._weights is None else self._weights[index]
        for at, (tier, key) in enumerate(zip(self._tiers, keys)):
            if key is None or not self._is_welcome(at, worth):
                continue
            try:
                kept = tier.put(key, packed, seconds)
            except OSError as error:
                self._give_up(at, error)
                continue
            if kept:
                self._counters.add(**{f"fills{at}": 1})
                if not self._last_has_all:
                    return

    def _is_welcome(self, at: int, worth: float) -> bool:
        if self._counters.total(f"failed{at}"):
            return False
        # After an epoch the worthy ones are in, and what room is left is anyone's.
        return worth >= self._thresholds[at] or self._counters.total("misses") > self._num_samples

    def _give_up(self, at: int, error: OSError) -> None:
        first = not self._counters.total(f"failed{at}")
        self._counters.add(**{f"failed{at}": 1})
        if first:
            warnings.warn(
                f"the cache's {self._tiers[at].name} tier takes no more samples; the run goes on without: {error}",
                stacklevel=2,
            )


def open_cache(
    recipe: Recipe,
    *,
    num_samples: int,
    ram_bytes: int,
    disk_bytes: int,
    host_key: bytes | None = None,
    folder: Path | None = None,
    forecast: Forecast | None = None,
    weights: Sequence[float] | None = None,
) -> Cache:
    """A cache in memory and on disk, each where its budget is not 0 and it can be had; a warning says where not.

    `host_key`: see `rendezvous.host_key`; the memory is then one for all ranks of a host that give the same. `folder`:
    where the disk's lie, by default `samples_folder()`.
    """
    tiers: list[Tier] = []
    try:
        if ram_bytes:
            tiers.append(RamTier(ram_bytes, num_samples=num_samples, host_key=host_key))
    except OSError as error:
        warnings.warn(f"no samples are kept in memory: {error}", stacklevel=2)
    try:
        if disk_bytes:
            tiers.append(DiskTier(disk_bytes, fingerprint=recipe.fingerprint, root=folder))
    except OSError as error:
        warnings.warn(f"no samples are kept on disk: {error}", stacklevel=2)
    return Cache(tiers, forecast=forecast, weights=weights)


def position_of(index: Any) -> int | None:
    """The number under which a sample is kept; None for a key that is no number from 0 on."""
    if type(index) is not int:
        if isinstance(index, bool):
            return None
        try:
            index = operator.index(index)  # NumPy's or a tensor's
        except TypeError:
            return None
    return index if index >= 0 else None


def _thresholds(tiers: Sequence[Tier], forecast: Forecast | None) -> list[float]:
    known = {tier.name: tier.threshold for tier in forecast.tiers} if forecast else {}
    return [known.get(tier.name, 0.0) for tier in tiers]
