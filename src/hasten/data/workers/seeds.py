"""Randomness as a function of (seed, epoch, index): the same whoever makes the sample, and when.

In: a base seed, as torch's DataLoader draws it, and where in the epoch a sample stands. Out: seeds. Refuses to know
samples. Seeds are mixed by the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014).
"""

from __future__ import annotations

import operator
import zlib
from typing import Any

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(*parts: int) -> int:
    """One 64-bit seed of several whole numbers; their order counts."""
    state = 0
    for part in parts:
        state = (state + GOLDEN + (part & MASK)) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def sample_seed(epoch_seed: int, index: Any, occurrence: int) -> int:
    """The seed of a sample: of its index, and of how often that came before in the epoch."""
    try:
        number = operator.index(index)  # an int, NumPy's or a tensor's
    except TypeError:
        number = zlib.crc32(repr(index).encode())
    return mix(epoch_seed, number, occurrence)
