"""What every place to keep prepared samples in can do.

A tier fills and holds: what is in stays in, and a full tier takes nothing more. In a random order no rule of eviction
does better, for each sample is asked for once an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, TypeVar

from hasten.loading.cache.parcel import Opened
from hasten.loading.memory.packing import Packed
from hasten.loading.recipe import Recipe

R = TypeVar("R")


class Missing(Enum):
    """A tier does not have the sample."""

    MISSING = "missing"


MISSING = Missing.MISSING


class Tier(Protocol):
    """A place to keep samples in. Threads and processes may use it at once."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def budget(self) -> int:
        """Bytes that it may take in all, its tables included."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether no value is likely to find room: not worth packing one."""
        ...

    def key(self, index: int, recipe: Recipe) -> bytes | None:
        """What the sample is filed under, 16 bytes; None where this tier cannot keep it."""
        ...

    def get(self, key: bytes, use: Callable[[Any, Opened], R]) -> R | Missing:
        """What `use` makes of the value and its parcel, or MISSING.

        Nothing that `use` returns may view the value. If the value is given back while it is used, then what `use`
        returned or raised is dropped.
        """
        ...

    def put(self, key: bytes, packed: Packed, seconds: float) -> bool:
        """Keep a value that took `seconds` to prepare. False when there is no room or it is there already.

        Raises OSError when the tier's medium fails.
        """
        ...

    def relieve(self) -> int:
        """Give back what others are short of; return bytes."""
        ...

    def clear(self) -> None:
        """Forget everything. Others may go on reading and filling meanwhile."""
        ...

    def close(self) -> None:
        """Let go of it in this process."""
        ...
