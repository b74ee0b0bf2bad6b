"""The global random generators that datasets draw from, and seeds as a function of (seed, epoch, index).

After every batch, hasten checks whether torch's CPU generator, NumPy's legacy generator or `random` was drawn from. Their own
`get_state` methods take 35 us, because `random` and NumPy convert 625 numbers one by one. Reading the states straight from
memory takes 3 us, where this Python and this NumPy store them at the expected place.

Seeds are mixed by the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014): a sample draws the same numbers whichever worker builds it, and whenever.
"""

from __future__ import annotations

import _random
import contextlib
import ctypes
import operator
import random
import sys
import zlib
from collections.abc import Collection, Generator
from typing import Any, NamedTuple

import numpy as np
import torch

MT_BYTES = 625 * 4  # a Mersenne twister: 624 words and the position of the next one


class Snapshot(NamedTuple):
    """The states of torch's, Python's and NumPy's generators. Two snapshots are equal if nothing was drawn in between.

    One draw goes undetected: a normal number that NumPy had computed in advance (`has_cached_normal`).
    """

    torch: bytes
    python: Any
    numpy: Any

    def moved(self, later: Snapshot) -> frozenset[str]:
        """Return the names of the generators that were drawn from between this snapshot and `later`."""
        return frozenset(name for name, one, other in zip(self._fields, self, later) if one != other)


ALL = frozenset(Snapshot._fields)


def snapshot() -> Snapshot:
    """Return the current states."""
    return Snapshot(torch.default_generator.get_state().numpy().tobytes(), _python.read(), _numpy_state())


def restore(states: Snapshot) -> None:
    """Restore the states. If NumPy's has changed, its cached normal number is dropped."""
    torch.default_generator.set_state(torch.frombuffer(bytearray(states.torch), dtype=torch.uint8))
    _python.write(states.python)
    if states.numpy == _numpy_state():
        return
    generator = _numpy_generator()
    if isinstance(states.numpy, bytes):
        ctypes.memmove(generator.ctypes.state_address, states.numpy, MT_BYTES)
    else:
        generator.state = states.numpy
    np.random.set_state({**_numpy_state_by_name(), "has_gauss": 0, "gauss": 0.0})


def seed_generators(seed: int, which: Collection[str] = ALL) -> None:
    """Seed the global generators named in `which` (all three by default).

    torch's takes 1 us, the other two take 7 us. `torch.manual_seed` would also seed every device, and takes 70 us.
    """
    if "torch" in which:
        torch.default_generator.manual_seed(seed)
    if "python" in which:
        random.seed(seed)
    if "numpy" in which:
        np.random.seed(seed & 0xFFFFFFFF)


@contextlib.contextmanager
def preserve_generators() -> Generator[None]:
    """Restore the three global generators at the end of the block."""
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


def has_cached_normal() -> bool:
    """Whether NumPy's generator has a normal number computed in advance."""
    return bool(_numpy_state_by_name()["has_gauss"])


def _numpy_state_by_name() -> dict[str, Any]:
    state: Any = np.random.get_state(legacy=False)
    return state


def _numpy_generator() -> Any:
    return np.random.mtrand._rand._bit_generator  # pyright: ignore


def _numpy_state() -> object:
    generator = _numpy_generator()
    if type(generator) is np.random.MT19937:
        return ctypes.string_at(generator.ctypes.state_address, MT_BYTES)
    return _Comparable(generator.state)  # the user has set another bit generator


class _Comparable(dict[str, Any]):
    """A state whose arrays compare by value."""

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __ne__(self, other: object) -> bool:  # dict defines its own
        return not self == other

    __hash__ = None  # type: ignore[assignment]


class _Python:
    """The state of the generator behind the functions of `random`."""

    def __init__(self) -> None:
        instance: Any = random._inst  # type: ignore[attr-defined]
        *words, position = instance.getstate()[1]
        written = np.array([position, *words], dtype=np.uint32).tobytes()
        offset = ctypes.string_at(id(instance), _random.Random.__basicsize__).find(written)
        self._address = id(instance) + offset if offset >= 0 and sys.implementation.name == "cpython" else None

    def read(self) -> Any:
        return random.getstate() if self._address is None else ctypes.string_at(self._address, MT_BYTES)

    def write(self, state: Any) -> None:
        if self._address is None:
            random.setstate(state)
        else:
            ctypes.memmove(self._address, state, MT_BYTES)


_python = _Python()


MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(*parts: int) -> int:
    """Mix several integers into one 64-bit seed; their order matters."""
    state = 0
    for part in parts:
        state = (state + GOLDEN + (part & MASK)) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def sample_seed(epoch_seed: int, index: Any, occurrence: int) -> int:
    """Return the seed of a sample, given its index and how often that index occurred before in the epoch."""
    try:
        number = operator.index(index)  # an int, NumPy's or a tensor's
    except TypeError:
        number = zlib.crc32(repr(index).encode())
    return mix(epoch_seed, number, occurrence)
