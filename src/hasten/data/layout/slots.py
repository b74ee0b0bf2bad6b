"""Reused shared memory for batches, returned to the training loop without a copy.

A slot is free again when nothing refers to it: no batch being built, no tensor of a batch, no view of one, and, if a device
copies from it, no copy in progress.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from hasten.data.layout.arena import Arena, Place

Memory = np.ndarray[Any, np.dtype[np.uint8]]

Pin = Callable[[int, int], "Callable[[], object] | None"]
"""Locks memory, given by address and size, into RAM; returns a function that unlocks it, or None."""

Returned = Callable[[], Callable[[], bool]]
"""Called when a slot is returned; returns a function that says whether the device is done with it."""


class Slot:
    """A place in the arena, reserved for as long as something refers to it."""

    __slots__ = ("_arena", "_returned", "place")

    def __init__(self, place: Place, arena: Arena, returned: Callable[[Place], None]) -> None:
        self.place = place
        self._arena = arena
        self._returned = returned

    @property
    def memory(self) -> Memory:
        """Its memory, which keeps the slot alive."""
        return np.asarray(self)

    @property
    def __array_interface__(self) -> dict[str, object]:
        address = self._arena.address + self.place.offset
        return {"shape": (self.place.size,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # another process writes to the place, and holds nothing

    def __del__(self) -> None:
        self._returned(self.place)


class Slots:
    """The slots of one loader, in the process that owns the workers; never more bytes than the arena's capacity."""

    def __init__(self, arena: Arena, *, pin: Pin | None = None, when_returned: Returned | None = None) -> None:
        self.arena = arena
        self.used_bytes = 0
        self._free: deque[Place] = deque()
        self._pending: deque[tuple[Place, Callable[[], bool]]] = deque()  # the device may still read from these
        self._pin = pin
        self.when_returned = when_returned
        self._unpin: list[Callable[[], object]] = []
        weakref.finalize(self, _undo, self._unpin)

    def take(self, size: int) -> Slot | None:
        """Return a slot of at least `size` bytes; None if no more memory is available."""
        self._reclaim()
        place = self._find(size) or self._reserve(size)
        if place is None:
            return None
        self.used_bytes += place.size
        return Slot(place, self.arena, self._return)

    def store(self, data: bytes) -> Slot | None:
        """Write bytes where every worker can read them; None if there is no room."""
        slot = self.take(len(data))
        if slot is not None:
            slot.memory[: len(data)] = memoryview(data)
        return slot

    def has_room(self, size: int) -> bool:
        """Whether another slot of that size fits in addition to those in use."""
        return self.used_bytes + size <= self.arena.capacity

    def _find(self, size: int) -> Place | None:
        for _ in range(len(self._free)):  # another thread may return a place at any time
            place = self._free.popleft()
            if size <= place.size <= 4 * size + (1 << 16):
                return place
            self._free.append(place)
        return None

    def _reserve(self, size: int) -> Place | None:
        try:
            place = self.arena.reserve(max(1, size))
        except OSError:
            return None
        if self._pin is not None and (undo := self._pin(self.arena.address + place.offset, place.size)):
            self._unpin.append(undo)
        return place

    def _return(self, place: Place) -> None:
        self.used_bytes -= place.size
        if self.when_returned is None:
            self._free.append(place)
        else:
            self._pending.append((place, self.when_returned()))

    def _reclaim(self) -> None:
        for _ in range(len(self._pending)):
            place, is_done = self._pending.popleft()
            if is_done():
                self._free.append(place)
            else:
                self._pending.append((place, is_done))


def _undo(unpin: list[Callable[[], object]]) -> None:
    for undo in unpin:
        undo()
