"""How many bytes the caches may take, and what that will hold.

In: what the user allows, what the machine has left, a few samples measured. Out: bytes, and a forecast of what a full
cache takes and which tier holds which share of it. Refuses to know how a tier keeps what it keeps.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hasten.cgroup import find_cgroup, read_memory
from hasten.errors import BudgetError
from hasten.stats import quantile

RAM_SHARE = 0.5  # of the memory available: the rest is for the workers, the batches and the model
RANKS_SHARE = 0.8  # of all memory, which stands for what is available where several processes share a cache
DISK_SHARE = 0.5  # of the free space: the rest is for checkpoints
SPARE_SHARE = 0.05  # of all memory, which the cache leaves to others
SPARE_LEAST, SPARE_MOST = 256 << 20, 2 << 30  # bytes
CHOOSY_FROM = 2.0  # ratio of the values of good and poor samples from which it pays to leave the poor ones out

_UNITS = {"": 1, "B": 1} | {
    prefix + tail: factor**power
    for tail, factor in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("k", "M", "G", "T"), start=1)
}
_FACTORS = {unit.lower(): factor for unit, factor in _UNITS.items()}


@dataclass(frozen=True)
class Measured:
    """One sample, prepared once."""

    num_bytes: float
    """What it takes in a cache."""
    seconds: float
    """What it took to prepare."""
    file_bytes: float | None = None
    """What it was read from; None where that is not known."""


@dataclass(frozen=True)
class TierShare:
    """What one tier will hold."""

    name: str
    num_bytes: float
    share: float
    """Of the full cache, 0..1."""
    threshold: float
    """Worth (seconds saved per byte, or weight) below which a sample is left out at first; 0.0: all are welcome."""


@dataclass(frozen=True)
class Forecast:
    """What the caches will hold, from a few samples measured."""

    num_samples: int
    full_bytes: float
    """What all samples would take."""
    expansion: float | None
    """K: bytes kept / bytes on disk; None where the files are not known."""
    tiers: tuple[TierShare, ...]
    seconds_per_sample: float
    """What it takes to prepare one, on average: what a hit saves."""

    @property
    def share(self) -> float:
        """Of the full cache, what all tiers together will hold, 0..1."""
        return sum(tier.share for tier in self.tiers)

    def line(self) -> str:
        """The forecast for a person."""
        times = "" if self.expansion is None else f" = {self.expansion:.1f}x the files"
        parts = [
            f"{_in_words(tier.num_bytes)} fits in {'RAM' if tier.name == 'ram' else tier.name}: {tier.share:.0%}"
            for tier in self.tiers
        ]
        left = 1.0 - self.share
        parts += [f"{left:.0%} is prepared anew each epoch"] if left >= 0.005 else []
        return f"full cache {_in_words(self.full_bytes)}{times}; {'; '.join(parts)}"


def parse_budget(budget: int | str, *, whole: int) -> int:
    """Bytes: from bytes, or from text as "8 GiB", "500 MB" or "50%" (of `whole` bytes).

    Raises BudgetError for anything else, and for less than nothing.
    """
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    found = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]*)?|\.[0-9]+)\s*(%|[a-zA-Z]*)\s*", str(budget))
    if found and isinstance(budget, str):
        number, unit = float(found[1]), found[2].lower()
        if unit == "%" and number <= 100:
            return int(whole * number / 100)
        if unit in _FACTORS:
            return int(number * _FACTORS[unit])
    raise BudgetError(f'{budget!r} is no size of a cache: give bytes, or text like "8 GiB", "500 MB" or "50%"')


def ram_budget(budget: int | str | None = None, *, for_ranks: bool = False) -> int:
    """Bytes for a cache in memory: what the user says, where a percentage is of what is available; else half of that.

    The ranks of a host must all come to the same figure: for them, what is available is four fifths of all memory.
    Raises BudgetError.
    """
    available = int(all_memory() * RANKS_SHARE) if for_ranks else available_memory()
    return int(available * RAM_SHARE) if budget is None else parse_budget(budget, whole=available)


def disk_budget(folder: Path, budget: int | str | None = None, *, taken: int = 0) -> int:
    """Bytes for a cache on the disk of a folder, which need not exist yet, where `taken` bytes are the cache's already.

    What the user says, where a percentage is of what is free or taken; else half of that. Raises BudgetError, and
    OSError where the disk cannot be asked.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    whole = shutil.disk_usage(folder).free + taken
    return int(whole * DISK_SHARE) if budget is None else parse_budget(budget, whole=whole)


def available_memory() -> int:
    """Bytes that can still be taken without swapping, by the machine and by the tightest control group."""
    group = read_memory(find_cgroup("memory"))
    machine = int(psutil.virtual_memory().available)
    return machine if group is None else min(machine, group.available)


def all_memory() -> int:
    """Bytes of the machine, or of the tightest control group."""
    group = read_memory(find_cgroup("memory"))
    machine = int(psutil.virtual_memory().total)
    return machine if group is None else min(machine, group.limit)


def spare_memory() -> int:
    """Bytes that a cache leaves free, or gives back."""
    return int(min(SPARE_MOST, max(SPARE_LEAST, all_memory() * SPARE_SHARE)))


def forecast(
    measured: Sequence[Measured],
    *,
    num_samples: int,
    budgets: Sequence[tuple[str, int]],
    weights: Sequence[float] | None = None,
) -> Forecast:
    """What tiers with `budgets` (name and bytes, nearest first) will hold of `num_samples` samples.

    `measured`: a few samples drawn from anywhere in the dataset. `weights`: how often each sample is asked for; then a
    sample's worth is its weight, else the seconds that it saves per byte. The tiers fill from the worthiest down, the
    greedy solution of the knapsack problem (Dantzig, Operations Research 5, 1957), which is as good as the optimum to
    within one sample a tier. Raises ValueError when nothing was measured.
    """
    if not measured:
        raise ValueError("a forecast needs samples that were measured")
    full = num_samples * sum(sample.num_bytes for sample in measured) / len(measured)
    if weights is None:
        worths = [(sample.seconds / max(1.0, sample.num_bytes), sample.num_bytes) for sample in measured]
    else:
        worths = [(float(weight), 1.0) for weight in weights]
    tiers: list[TierShare] = []
    held = 0.0
    for name, budget in budgets:
        num_bytes = min(float(budget), full - held)
        held += num_bytes
        share = held / full if full else 1.0
        tiers.append(TierShare(name, num_bytes, num_bytes / full if full else 1.0, _threshold(worths, share)))
    files = [sample.file_bytes for sample in measured if sample.file_bytes]
    known = sum(sample.num_bytes for sample in measured if sample.file_bytes)
    return Forecast(
        num_samples=num_samples,
        full_bytes=full,
        expansion=known / sum(files) if files else None,
        tiers=tuple(tiers),
        seconds_per_sample=sum(sample.seconds for sample in measured) / len(measured),
    )


def _threshold(worths: Sequence[tuple[float, float]], share: float) -> float:
    """The least worth among the worthiest that fill `share` (0..1) of the bytes; `worths`: (worth, bytes) each.

    0.0 where everything fits, or the samples are so alike that to wait for better ones gains nothing.
    """
    values = [worth for worth, _ in worths]
    if share >= 1.0 or quantile(values, 0.9) <= CHOOSY_FROM * quantile(values, 0.1):
        return 0.0
    left = share * sum(num_bytes for _, num_bytes in worths)
    for worth, num_bytes in sorted(worths, reverse=True):
        left -= num_bytes
        if left <= 0:
            return worth
    return 0.0


def _in_words(num_bytes: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= factor:
            value = num_bytes / factor
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{num_bytes / 1e3:.0f} kB"
