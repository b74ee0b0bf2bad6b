"""How many bytes a cache may take, and what it will hold."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from hasten.cgroup import find_cgroup, read_memory
from hasten.errors import BudgetError

RAM_SHARE = 0.5  # of the memory available: the rest is for the workers, the batches and the model
RANKS_SHARE = 0.8  # of all memory, which stands for what is available where several processes share a cache
DISK_SHARE = 0.5  # of the free space: the rest is for checkpoints
SPARE_SHARE = 0.05  # of all memory, which the cache leaves to others
SPARE_LEAST, SPARE_MOST = 256 << 20, 2 << 30  # bytes

_UNITS = {"": 1, "B": 1} | {
    prefix + tail: factor**power
    for tail, factor in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("k", "M", "G", "T"), start=1)
}
_FACTORS = {unit.lower(): factor for unit, factor in _UNITS.items()}


@dataclass(frozen=True)
class Forecast:
    """What a cache will hold, from the first samples that were made."""

    num_samples: int
    full_bytes: float
    """What the values of all samples would take."""
    expansion: float | None
    """K: bytes kept / bytes of the files; None where the files are not known."""
    tiers: tuple[tuple[str, int], ...]
    """Name and budget (bytes) of each, nearest first."""
    seconds_per_sample: float
    """What a hit saves on average."""

    def shares(self) -> list[tuple[str, float, float]]:
        """Name, bytes and share (0..1 of the full cache) of what each tier will hold."""
        left, found = self.full_bytes, []
        for name, budget in self.tiers:
            held = min(float(budget), left)
            left -= held
            found.append((name, held, held / self.full_bytes if self.full_bytes else 1.0))
        return found

    @property
    def share(self) -> float:
        """Of the full cache, what all tiers together will hold, 0..1."""
        return sum(share for _, _, share in self.shares())

    def line(self) -> str:
        """The forecast for a person."""
        times = "" if self.expansion is None else f" = {self.expansion:.1f}x the files"
        parts = [
            f"{_in_words(held)} fits in {'RAM' if name == 'ram' else name}: {share:.0%}"
            for name, held, share in self.shares()
        ]
        left = 1.0 - self.share
        parts += [f"{left:.0%} is computed again each epoch"] if left >= 0.005 else []
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
    raise BudgetError(f'{budget!r} is not a valid cache size: use bytes, or text like "8 GiB", "500 MB" or "50%"')


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


def _in_words(num_bytes: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= factor:
            value = num_bytes / factor
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{num_bytes / 1e3:.0f} kB"
