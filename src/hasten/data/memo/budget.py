"""The size of a cache, and a forecast of what it will hold."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from hasten.cgroup import find_cgroup, read_memory
from hasten.errors import BudgetError

RAM_SHARE = 0.5  # of available memory; the rest is for the workers, the batches and the model
RANKS_SHARE = 0.8  # of all memory; stands for the available memory when several processes share a cache
DISK_SHARE = 0.5  # of the free space; the rest is for checkpoints
SPARE_SHARE = 0.05  # of all memory; the cache leaves it free
SPARE_MIN, SPARE_MAX = 256 << 20, 2 << 30  # bytes

_UNITS = {"": 1, "B": 1} | {
    prefix + tail: factor**power
    for tail, factor in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("k", "M", "G", "T"), start=1)
}
_FACTORS = {unit.lower(): factor for unit, factor in _UNITS.items()}


@dataclass(frozen=True)
class Forecast:
    """A prediction, from the first samples, of what a cache will hold."""

    num_samples: int
    full_bytes: float
    """Bytes that the values of all samples would take."""
    expansion: float | None
    """Cached bytes / bytes of the files; None if the files are not known."""
    tiers: tuple[tuple[str, int], ...]
    """Name and budget (bytes) of each tier, nearest first."""
    seconds_per_sample: float
    """Mean time that a hit saves."""

    def shares(self) -> list[tuple[str, float, float]]:
        """Return (name, bytes, fraction of the full cache) for each tier."""
        left, found = self.full_bytes, []
        for name, budget in self.tiers:
            held = min(float(budget), left)
            left -= held
            found.append((name, held, held / self.full_bytes if self.full_bytes else 1.0))
        return found

    @property
    def share(self) -> float:
        """Fraction of the full cache that all tiers together will hold, 0..1."""
        return sum(share for _, _, share in self.shares())

    def line(self) -> str:
        """Return the forecast as one line of text."""
        times = "" if self.expansion is None else f" = {self.expansion:.1f}x the files"
        parts = [
            f"{_text(held)} fits in {'RAM' if name == 'ram' else name}: {share:.0%}"
            for name, held, share in self.shares()
        ]
        left = 1.0 - self.share
        parts += [f"{left:.0%} is recomputed each epoch"] if left >= 0.005 else []
        return f"full cache {_text(self.full_bytes)}{times}; {'; '.join(parts)}"


def parse_budget(budget: int | str, *, whole: int) -> int:
    """Convert a budget to bytes.

    Args:
        budget: bytes, or text like "8 GiB", "500 MB" or "50%".
        whole: bytes that 100% stands for.

    Raises:
        BudgetError: if `budget` is anything else, or negative.
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
    raise BudgetError(f'{budget!r} is not a valid cache size: use bytes, or text like "8 GiB", "500 MB" or "50%"')


def ram_budget(budget: int | str | None = None, *, for_ranks: bool = False) -> int:
    """Return the bytes for a cache in memory: `budget`, where a percentage refers to the available memory; half by default.

    All ranks of a host must get the same number: with `for_ranks`, 80% of all memory counts as available.

    Raises:
        BudgetError: if `budget` is not valid.
    """
    available = int(all_memory() * RANKS_SHARE) if for_ranks else available_memory()
    return int(available * RAM_SHARE) if budget is None else parse_budget(budget, whole=available)


def disk_budget(folder: Path, budget: int | str | None = None, *, taken: int = 0) -> int:
    """Return the bytes for a cache on the disk of a folder.

    Args:
        folder: a folder that need not exist yet.
        budget: the user's budget, where a percentage refers to the free bytes plus `taken`; None: half of that.
        taken: bytes that the cache already takes.

    Raises:
        BudgetError: if `budget` is not valid.
        OSError: if the disk's free space cannot be read.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    whole = shutil.disk_usage(folder).free + taken
    return int(whole * DISK_SHARE) if budget is None else parse_budget(budget, whole=whole)


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping, on the machine and in the tightest control group."""
    group = read_memory(find_cgroup("memory"))
    machine = int(psutil.virtual_memory().available)
    return machine if group is None else min(machine, group.available)


def all_memory() -> int:
    """Return the bytes of memory of the machine, or of the tightest control group."""
    group = read_memory(find_cgroup("memory"))
    machine = int(psutil.virtual_memory().total)
    return machine if group is None else min(machine, group.limit)


def spare_memory() -> int:
    """Return the bytes that a cache leaves free, or releases."""
    return int(min(SPARE_MAX, max(SPARE_MIN, all_memory() * SPARE_SHARE)))


def _text(num_bytes: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= factor:
            value = num_bytes / factor
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{num_bytes / 1e3:.0f} kB"
