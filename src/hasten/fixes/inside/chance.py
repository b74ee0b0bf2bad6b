"""The random generators that a forward may draw from, so that it can be made again.

In: nothing. Out: their states. Refuses generators that the script made for itself: they are its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch


class Chance(NamedTuple):
    """States; None of those that were not asked for."""

    torch: torch.Tensor
    devices: Mapping[int, torch.Tensor] = {}  # by number
    python: Any = None
    numpy: Any = None


def chance() -> Chance:
    """The states now."""
    numbers = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    devices = {number: torch.cuda.get_rng_state(number) for number in numbers}
    return Chance(torch.get_rng_state(), devices, random.getstate(), np.random.get_state())


def chance_on(device: str) -> Chance:
    """The states now of torch alone, on the CPU and on the device in use: a forward's own, taken in every step."""
    state = torch.default_generator.get_state()
    if device != "cuda":
        return Chance(state)
    number = torch.cuda.current_device()
    return Chance(state, {number: torch.cuda.get_rng_state(number)})


def set_chance(states: Chance) -> None:
    """Put them back."""
    torch.set_rng_state(states.torch)
    for number, state in states.devices.items():
        torch.cuda.set_rng_state(state, number)
    if states.python is not None:
        random.setstate(states.python)
        np.random.set_state(states.numpy)
