"""The random generators that a forward may draw from, so that it can be made again.

In: nothing. Out: their states. Refuses generators that the script made for itself: they are its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Chance:
    """States; None of those that were not asked for."""

    torch: torch.Tensor
    devices: dict[int, torch.Tensor]  # by number
    python: Any = None
    numpy: Any = None


def chance(*, whole: bool = True) -> Chance:
    """The states now; not `whole`: of torch alone, and of the device in use, which takes microseconds."""
    numbers: list[int] = []
    if torch.cuda.is_initialized():
        numbers = list(range(torch.cuda.device_count())) if whole else [torch.cuda.current_device()]
    devices = {number: torch.cuda.get_rng_state(number) for number in numbers}
    if not whole:
        return Chance(torch.get_rng_state(), devices)
    return Chance(torch.get_rng_state(), devices, random.getstate(), np.random.get_state())


def set_chance(states: Chance) -> None:
    """Put them back."""
    torch.set_rng_state(states.torch)
    for number, state in states.devices.items():
        torch.cuda.set_rng_state(state, number)
    if states.python is not None:
        random.setstate(states.python)
        np.random.set_state(states.numpy)
