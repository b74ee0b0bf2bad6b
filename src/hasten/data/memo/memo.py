"""Values by key, from the nearest tier that has them: memory first, then the local disk.

Values are not evicted; a full tier takes nothing more. A value read from disk is copied to memory if there is room. Values in
memory are also written to disk for the next run if the disk's budget is much larger than memory's.
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
from hasten.data.memo.ledger import bytes_of_stores
from hasten.data.memo.ram import Memory, RamTier
from hasten.data.memo.remote import RemoteCounts, RemoteTier

log = logging.getLogger("hasten")

DUPLICATES_FROM = 4.0  # disk budget / memory budget from which values in memory are also written to disk
CHECK_SECONDS = 1.0  # between checks whether the machine is short of memory

Budget = int | str | None
"""Bytes, "8 GiB", "50%" or "auto"; None disables the tier."""


@dataclass(frozen=True)
class TierCounts:
    """Counts of one tier, over all processes."""

    name: str
    num_hits: int
    num_fills: int
    num_bytes: int
    """Bytes in use now."""
    budget: int
    """Bytes the tier may use."""
    seconds_saved: float
    """Hits times the mean seconds for computing a value."""


@dataclass(frozen=True)
class MemoCounts:
    """Counts of a memo, over all processes."""

    num_misses: int
    seconds_computing: float
    value_bytes: int
    """Bytes of all computed values, whether stored or not."""
    source_bytes: int
    """Bytes of the files from which they were computed."""
    tiers: tuple[TierCounts, ...]
    remote: RemoteCounts | None = None
    """Counts of remote objects; None without a cache on disk."""

    @property
    def num_hits(self) -> int:
        """Hits in all tiers."""
        return sum(tier.num_hits for tier in self.tiers)

    @property
    def hit_rate(self) -> float | None:
        """Fraction of the requested values that a tier had, 0..1; None before the first request."""
        asked = self.num_hits + self.num_misses
        return self.num_hits / asked if asked else None


class Memo:
    """A cache with tiers, nearest first. Usable after a fork, and picklable to a process being started."""

    def __init__(
        self, ram: RamTier | None = None, disk: DiskTier | None = None, remote: RemoteTier | None = None
    ) -> None:
        self.remote = remote
        """The remote objects on disk. Where there are some, the disk is left to them, and values are kept in memory."""
        self._tiers: list[RamTier | DiskTier] = [tier for tier in (ram, disk) if tier is not None]
        self._last_counts: MemoCounts | None = None
        self._duplicates = ram is not None and disk is not None and disk.budget >= DUPLICATES_FROM * ram.budget
        kinds = ("hits", "fills")
        self._counters = Counters(
            ["misses", "seconds", "values", "sources", *(f"{kind}{at}" for kind in kinds for at in range(2))]
        )
        self._failed: set[str] = set()
        self._next_check = 0.0

    def find(self, key: bytes) -> tuple[int, Memory] | None:
        """Return the tier that has a value, and its bytes in newly allocated memory. Not counted as a hit: see `hit`."""
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
        """Return `RamTier.view(key)`, counted as a hit if `counted`."""
        nearest = next(iter(self._tiers), None)
        found = nearest.view(key) if isinstance(nearest, RamTier) else None
        if found is not None and counted:
            self.hit(0)
        return found

    def hit(self, at: int) -> None:
        """Count a hit in tier `at`."""
        self._counters.add(**{f"hits{at}": 1})

    def get(self, key: bytes) -> Any:
        """Return the value; raises KeyError if no tier has it."""
        found = self.find(key)
        if found is None:
            raise KeyError(key)
        value = decode(found[1])
        self.hit(found[0])
        return value

    def in_memory(self, key: bytes) -> Any:
        """Return the value from the memory tier without counting a hit; None if it is not there."""
        memory = next((tier.read(key) for tier in self._tiers if isinstance(tier, RamTier)), None)
        return None if memory is None else decode(memory)

    def takes(self, size: int) -> bool:
        """Whether any tier may have room for `size` bytes; if not, a value need not be packed."""
        return any(self._is_open(tier) and tier.takes(size) for tier in self._tiers)

    def _is_open(self, tier: RamTier | DiskTier) -> bool:
        is_left = tier.name == "disk" and self.remote is not None and self.remote.is_used
        return tier.name not in self._failed and not is_left

    def __contains__(self, key: bytes) -> bool:
        return any(key in tier for tier in self._tiers)

    def put(self, key: bytes, value: Any, *, seconds: float, source_bytes: int = 0) -> bool:
        """Store a value that took `seconds` to compute from `source_bytes`; False if it cannot be stored."""
        try:
            encoded = encode(value)
        except NotStorableError:
            self._counters.add(misses=1, seconds=seconds)
            return False
        self._counters.add(misses=1, seconds=seconds, values=encoded.size, sources=source_bytes)
        is_stored = False
        for at in range(len(self._tiers)):
            if not is_stored or self._duplicates:
                is_stored |= self._write(at, key, encoded.pieces, encoded.size)
        return is_stored

    def note(self, key: bytes, value: Any) -> None:
        """Store a small value that is not counted: what is known about a source."""
        encoded = encode(value)
        for at in range(len(self._tiers)):
            self._write(at, key, encoded.pieces, encoded.size, counted=False)

    def counts(self) -> MemoCounts:
        """Return the counts so far, over all processes; once closed, the last ones."""
        if self._last_counts is not None:
            return self._last_counts
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
        remote = None if self.remote is None else self.remote.counts()
        sums = total("misses"), total("seconds"), total("values"), total("sources")
        return MemoCounts(int(sums[0]), sums[1], int(sums[2]), int(sums[3]), tiers, remote)

    def shrink(self) -> int:
        """Release memory if the machine or the control group is short of it; return the bytes released."""
        return sum(tier.shrink() for tier in self._tiers if isinstance(tier, RamTier))

    def close(self) -> None:
        """Let go of the tiers, whose files are closed once no thread uses them. The counts can still be read."""
        self._last_counts = self.counts()
        self._tiers = []
        if self.remote is not None:
            self.remote.close()
        self._counters.close()

    def _write(self, at: int, key: bytes, pieces: list[Any], size: int, *, counted: bool = True) -> bool:
        tiers = self._tiers
        if at >= len(tiers) or not self._is_open(tier := tiers[at]):  # another thread may have closed the memo
            return False
        try:
            is_stored = tier.write(key, Encoded(pieces, size))
        except OSError as error:
            self._failed.add(tier.name)
            log.warning("the %s cache stores no more values: %s", tier.name, error)
            return False
        if is_stored and counted:
            self._counters.add(**{f"fills{at}": 1})
        return is_stored


def open_memo(*, ram: Budget, disk: Budget, host_key: bytes | None = None) -> Memo:
    """Open a memo with the user's budgets; a tier that cannot be opened is left out with a warning.

    Args:
        ram: budget of the memory tier.
        disk: budget of the disk tier.
        host_key: shared by all ranks of a host, which then share one memory tier.

    Raises:
        BudgetError: if a budget is not valid.
    """
    ram_bytes = 0 if ram is None else ram_budget(None if ram == "auto" else ram, for_ranks=host_key is not None)
    found: dict[str, Any] = {}
    for name, make in (
        ("ram", lambda: RamTier(ram_bytes, host_key=host_key) if ram_bytes else None),
        ("disk", lambda: _open_disk(disk)),
    ):
        try:
            found[name] = make()
        except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
            where = "; set HASTEN_CACHE to another folder" if name == "disk" else ""
            log.warning("the %s cache is off: %s%s", name, error, where)
    tier = found.get("disk")
    return Memo(**found, remote=None if tier is None else RemoteTier(tier.budget, memo_folder()))


def _open_disk(disk: Budget) -> DiskTier | None:
    if disk is None:
        return None
    folder = memo_folder()
    budget = disk_budget(folder, None if disk == "auto" else disk, taken=bytes_of_stores(folder))
    return DiskTier(budget) if budget else None


def key_of_host() -> bytes | None:
    """Return a key shared by the ranks of a host; None for a process without other ranks."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < 2:
        return None
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
    return "\0".join(os.environ.get(name, "") for name in names).encode()


# The memo that library calls of this process, or of this thread, use.

_of_process: Memo | None = None
_of_thread = threading.local()


def current() -> Memo | None:
    """Return the memo in use; None if library calls run without one."""
    try:
        return _of_thread.memo
    except AttributeError:
        return _of_process


def use_in_process(memo: Memo | None) -> None:
    """Set the memo that all threads of this process use; None for no memo."""
    global _of_process
    _of_process = memo


@contextlib.contextmanager
def using(memo: Memo | None) -> Generator[None]:
    """Use a memo, or none, in this thread for the block."""
    before = _of_thread.__dict__.get("memo", _of_thread)
    _of_thread.memo = memo
    try:
        yield
    finally:
        if before is _of_thread:
            del _of_thread.memo
        else:
            _of_thread.memo = before


def get_or_compute(
    key: bytes | None,
    compute: Callable[[], Any],
    *,
    is_unchanged: Callable[[], bool] | None = None,
    source_bytes: int = 0,
) -> Any:
    """Return the value of a key; compute it if no tier has it.

    Args:
        key: the key; None: always compute.
        compute: returns the value; library calls within it are not memoized themselves.
        is_unchanged: called after computing; whether the source is unchanged since the key was computed.
        source_bytes: bytes of the source.
    """
    memo = current()
    if memo is None or key is None:
        return compute()
    with contextlib.suppress(KeyError, ValueError):
        return memo.get(key)
    began = time.perf_counter()
    with using(None):
        value = compute()
    if is_unchanged is None or is_unchanged():
        memo.put(key, value, seconds=time.perf_counter() - began, source_bytes=source_bytes)
    return value
