"""The random generators that a forward may draw from, so that it can be made again.

In: nothing. Out: their states. Refuses generators that the script made for itself: they are its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from hasten.devices import accelerator


class Chance(NamedTuple):
    """States; None of those that were not asked for."""

    torch: torch.Tensor
    devices: Mapping[int, torch.Tensor] = {}  # by number
    python: Any = None
    numpy: Any = None


def chance() -> Chance:
    """The states now."""
    numpy = _numpy()
    drawn = numpy.random.get_state() if numpy is not None else None
    return Chance(torch.get_rng_state(), accelerator.random_states(), random.getstate(), drawn)


def chance_on(device: str) -> Chance:
    """The states now of torch alone, on the CPU and on the device in use: a forward's own, taken in every step."""
    state = torch.default_generator.get_state()
    return Chance(state) if device == "cpu" else Chance(state, accelerator.random_state())


def set_chance(states: Chance) -> None:
    """Put them back."""
    torch.set_rng_state(states.torch)
    accelerator.set_random_states(states.devices)
    if states.python is not None:
        random.setstate(states.python)
    numpy = _numpy()
    if states.numpy is not None and numpy is not None:
        numpy.random.set_state(states.numpy)


def _numpy() -> Any:
    """NumPy where the script has it; a fix does not need it."""
    return sys.modules.get("numpy")
