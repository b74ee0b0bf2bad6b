"""Values by key, from the nearest tier that has them: memory first, then the local disk.

What is written stays; a full tier takes nothing more. A value that comes from the disk is copied to memory where there is
room. What lies in memory is written to the disk as well, for the next run, where the disk may take much more than memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from hasten.data.memo.budget import disk_budget, ram_budget
from hasten.data.memo.codec import Encoded, NotStorableError, decode, encode
from hasten.data.memo.counters import Counters
from hasten.data.memo.disk import DiskTier, memo_folder
from hasten.data.memo.ram import Memory, RamTier

log = logging.getLogger("hasten")

DUPLICATES_FROM = 4.0  # ratio of the budgets of disk and memory from which the disk gets what memory has, too
CHECK_SECONDS = 1.0  # between looks whether the machine is short of memory

Budget = int | str | None
"""Bytes, "8 GiB", "50%" or "auto"; None: nothing is kept there."""


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
    """Hits times the mean seconds that computing a value took."""


@dataclass(frozen=True)
class MemoCounts:
    """What a memo did, in all processes."""

    num_misses: int
    seconds_computing: float
    value_bytes: int
    """Bytes of all values computed, whether they were kept or not."""
    source_bytes: int
    """Bytes of the files that they were computed from."""
    tiers: tuple[TierCounts, ...]

    @property
    def num_hits(self) -> int:
        """Of all tiers."""
        return sum(tier.num_hits for tier in self.tiers)

    @property
    def hit_rate(self) -> float | None:
        """Of all values asked for, those that a tier had, 0..1; None before the first."""
        asked = self.num_hits + self.num_misses
        return self.num_hits / asked if asked else None


class Memo:
    """Tiers, nearest first. Usable after a fork, and picklable to a process while that is started."""

    def __init__(self, ram: RamTier | None = None, disk: DiskTier | None = None) -> None:
        self._tiers: list[RamTier | DiskTier] = [tier for tier in (ram, disk) if tier is not None]
        self._duplicates = ram is not None and disk is not None and disk.budget >= DUPLICATES_FROM * ram.budget
        kinds = ("hits", "fills")
        self._counters = Counters(
            ["misses", "seconds", "values", "sources", *(f"{kind}{at}" for kind in kinds for at in range(2))]
        )
        self._failed: set[str] = set()
        self._next_check = 0.0

    def find(self, key: bytes) -> tuple[int, Memory] | None:
        """Which tier has a value, and its bytes in memory of the caller's own. Not counted as a hit: see `hit`."""
        if (now := time.monotonic()) > self._next_check:
            self._next_check = now + CHECK_SECONDS
            self.shrink()
        for at, tier in enumerate(self._tiers):
            memory = tier.read(key)
            if memory is not None:
                if at:
                    self._write(0, key, [memory.data], len(memory))
                return at, memory
        return None

    def view(self, key: bytes, *, counted: bool = True) -> tuple[Memory, Callable[[], bool]] | None:
        """See `RamTier.view`; `counted`: as a hit."""
        found = self._tiers[0].view(key) if self._tiers and isinstance(self._tiers[0], RamTier) else None
        if found is not None and counted:
            self.hit(0)
        return found

    def hit(self, at: int) -> None:
        """Count a value that a tier had."""
        self._counters.add(**{f"hits{at}": 1})

    def get(self, key: bytes) -> Any:
        """The value; raises KeyError where no tier has it."""
        found = self.find(key)
        if found is None:
            raise KeyError(key)
        value = decode(found[1])
        self.hit(found[0])
        return value

    def in_memory(self, key: bytes) -> Any:
        """The value, where the tier in memory has it, not counted as a hit; else None."""
        memory = next((tier.read(key) for tier in self._tiers if isinstance(tier, RamTier)), None)
        return None if memory is None else decode(memory)

    def takes(self, size: int) -> bool:
        """Whether a tier may have room for so many bytes; else a value need not be packed."""
        return any(tier.name not in self._failed and tier.takes(size) for tier in self._tiers)

    def __contains__(self, key: bytes) -> bool:
        return any(key in tier for tier in self._tiers)

    def put(self, key: bytes, value: Any, *, seconds: float, source_bytes: int = 0) -> bool:
        """Keep a value that took `seconds` to compute from `source_bytes`; False where it cannot be kept."""
        try:
            encoded = encode(value)
        except NotStorableError:
            self._counters.add(misses=1, seconds=seconds)
            return False
        self._counters.add(misses=1, seconds=seconds, values=encoded.size, sources=source_bytes)
        is_kept = False
        for at in range(len(self._tiers)):
            if not is_kept or self._duplicates:
                is_kept |= self._write(at, key, encoded.pieces, encoded.size)
        return is_kept

    def note(self, key: bytes, value: Any) -> None:
        """Keep a small value that is not counted: what is known about a source."""
        encoded = encode(value)
        for at in range(len(self._tiers)):
            self._write(at, key, encoded.pieces, encoded.size, counted=False)

    def counts(self) -> MemoCounts:
        """What was done so far, in all processes."""
        total = self._counters.total
        mean = total("seconds") / max(1.0, total("misses"))
        tiers = tuple(
            TierCounts(
                name=tier.name,
                num_hits=int(total(f"hits{at}")),
                num_fills=int(total(f"fills{at}")),
                num_bytes=tier.num_bytes,
                budget=tier.budget,
                seconds_saved=total(f"hits{at}") * mean,
            )
            for at, tier in enumerate(self._tiers)
        )
        return MemoCounts(int(total("misses")), total("seconds"), int(total("values")), int(total("sources")), tiers)

    def shrink(self) -> int:
        """Give memory back where the machine or the control group is short of it; return bytes."""
        return sum(tier.shrink() for tier in self._tiers if isinstance(tier, RamTier))

    def close(self) -> None:
        """Let go of the tiers in this process. The counts can still be read."""
        counts = self.counts()
        self.counts = lambda: counts  # type: ignore[method-assign]
        for tier in self._tiers:
            tier.close()
        self._tiers = []
        self._counters.close()

    def _write(self, at: int, key: bytes, pieces: list[Any], size: int, *, counted: bool = True) -> bool:
        tier = self._tiers[at]
        if tier.name in self._failed:
            return False
        try:
            is_kept = tier.write(key, Encoded(pieces, size))
        except OSError as error:
            self._failed.add(tier.name)
            log.warning("the %s cache takes no more values: %s", tier.name, error)
            return False
        if is_kept and counted:
            self._counters.add(**{f"fills{at}": 1})
        return is_kept


def open_memo(*, ram: Budget, disk: Budget, host_key: bytes | None = None) -> Memo:
    """A memo with the budgets that the user gave; a tier that cannot be had is left out with a warning.

    Raises BudgetError.
    """
    ram_bytes = 0 if ram is None else ram_budget(None if ram == "auto" else ram, for_ranks=host_key is not None)
    found: dict[str, Any] = {}
    for name, make in (
        ("ram", lambda: RamTier(ram_bytes, host_key=host_key) if ram_bytes else None),
        ("disk", lambda: _open_disk(disk)),
    ):
        try:
            found[name] = make()
        except (OSError, RuntimeError) as error:  # it cannot be had; there is no home folder
            where = "; HASTEN_CACHE names another folder" if name == "disk" else ""
            log.warning("nothing is cached on %s: %s%s", name, error, where)
    return Memo(**found)


def _open_disk(disk: Budget) -> DiskTier | None:
    if disk is None:
        return None
    budget = disk_budget(memo_folder(), None if disk == "auto" else disk)
    return DiskTier(budget) if budget else None


def key_of_host() -> bytes | None:
    """What the ranks of a host agree on; None for a process that has no ranks beside it."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < 2:
        return None
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
    return "\0".join(os.environ.get(name, "") for name in names).encode()


# Which memo the calls of this process, or of this thread, go through.

_of_process: Memo | None = None
_of_thread = threading.local()


def current() -> Memo | None:
    """The memo in use; None where library calls are to run as they are."""
    try:
        return _of_thread.memo
    except AttributeError:
        return _of_process


def use_in_process(memo: Memo | None) -> None:
    """Have all threads of this process go through a memo, or through none."""
    global _of_process
    _of_process = memo


@contextlib.contextmanager
def using(memo: Memo | None) -> Generator[None]:
    """Have this thread go through a memo, or through none, for a while."""
    before = _of_thread.__dict__.get("memo", _of_thread)
    _of_thread.memo = memo
    try:
        yield
    finally:
        if before is _of_thread:
            del _of_thread.memo
        else:
            _of_thread.memo = before


def remembered(
    key: bytes | None, compute: Callable[[], Any], *, still: Callable[[], bool] | None = None, source_bytes: int = 0
) -> Any:
    """The value of a key, computed where no tier has it; `key` None: computed.

    `still`: whether the source is what it was when the key was made; asked after computing. Calls within `compute` are not
    memoized themselves.
    """
    memo = current()
    if memo is None or key is None:
        return compute()
    with contextlib.suppress(KeyError, ValueError):
        return memo.get(key)
    began = time.perf_counter()
    with using(None):
        value = compute()
    if still is None or still():
        memo.put(key, value, seconds=time.perf_counter() - began, source_bytes=source_bytes)
    return value
