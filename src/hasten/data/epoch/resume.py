"""Resuming mid-epoch without making the samples that were handed out before.

The state is made of plain values, which `torch.load(weights_only=True)` takes. The number of workers may be another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hasten.errors import StateError

VERSION = 1


@dataclass
class Position:
    """A point in an epoch."""

    batch_size: int | None
    base_seed: int
    """Of the samples' own randomness."""
    epoch: int
    """BaseIterator on that seed before this one."""
    has_drawn_seed: bool
    """The seed was drawn when this epoch began; workers that stay keep the seed of their first."""
    generators: dict[str, Any]
    """As they were when the epoch began."""
    batches: int = 0
    """Handed out so far."""


def to_state(position: Position | None) -> dict[str, Any]:
    """The state of a loader: in an epoch, or between two."""
    return {"hasten_loader": VERSION, "position": None if position is None else dict(vars(position))}


def from_state(state: Any, *, batch_size: int | None) -> Position | None:
    """The position of a state. Raises StateError where it is not of such a loader."""
    if not isinstance(state, dict) or state.get("hasten_loader") != VERSION:
        raise StateError("this is not the state of a hasten.Loader; pass what its state_dict() gave")
    if state["position"] is None:
        return None
    try:
        position = Position(**state["position"])
    except TypeError as error:
        raise StateError(f"the state of a hasten.Loader is torn: {error}") from None
    if position.batch_size != batch_size:
        raise StateError(
            f"the state was saved with batch_size={position.batch_size}, the loader has batch_size={batch_size}; "
            "in mid-epoch they must be the same"
        )
    return position


def read_generators(own: dict[str, torch.Generator]) -> dict[str, Any]:
    """The states of a loader's own generators and of the global ones."""
    version, words, gauss = random.getstate()
    name, keys, place, has_normal, normal = np.random.get_state()
    return {
        "own": {key: generator.get_state() for key, generator in own.items()},
        "torch": torch.default_generator.get_state(),
        "python": [version, list(words), gauss],
        "numpy": [
            name,
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(place),
            int(has_normal),
            float(normal),
        ],
    }


def write_generators(states: dict[str, Any], own: dict[str, torch.Generator]) -> None:
    """Put them back."""
    for key, generator in own.items():
        if key in states["own"]:
            generator.set_state(states["own"][key])
    torch.default_generator.set_state(states["torch"])
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, place, has_normal, normal = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), place, has_normal, normal))
