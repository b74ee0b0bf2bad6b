"""Resume mid-epoch without building the samples of earlier batches.

The state consists of plain values that `torch.load(weights_only=True)` accepts. The number of workers may change.
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
    """A position in an epoch."""

    batch_size: int | None
    base_seed: int
    """Seed of the samples' random numbers."""
    epoch: int
    """Number of epochs on that seed before this one."""
    has_drawn_seed: bool
    """The seed was drawn at the start of this epoch; persistent workers keep the seed of their first epoch."""
    generators: dict[str, Any]
    """Their states at the start of the epoch."""
    batches: int = 0
    """Batches returned so far."""


def to_state(position: Position | None) -> dict[str, Any]:
    """Return the state of a loader, in an epoch or between two."""
    return {"hasten_loader": VERSION, "position": None if position is None else dict(vars(position))}


def from_state(state: Any, *, batch_size: int | None) -> Position | None:
    """Return the position stored in a state. Raises StateError if it does not come from such a loader."""
    if not isinstance(state, dict) or state.get("hasten_loader") != VERSION:
        raise StateError("this is not the state of a hasten.Loader; pass the value that its state_dict() returned")
    if state["position"] is None:
        return None
    try:
        position = Position(**state["position"])
    except TypeError as error:
        raise StateError(f"the state of a hasten.Loader is incomplete or corrupt: {error}") from None
    if position.batch_size != batch_size:
        raise StateError(
            f"the state was saved with batch_size={position.batch_size}, but the loader has batch_size={batch_size}; "
            "to resume mid-epoch, they must be equal"
        )
    return position


def read_generators(own: dict[str, torch.Generator]) -> dict[str, Any]:
    """Return the states of a loader's own generators and of the global ones."""
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
    """Restore the states that `read_generators` returned."""
    for key, generator in own.items():
        if key in states["own"]:
            generator.set_state(states["own"][key])
    torch.default_generator.set_state(states["torch"])
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, place, has_normal, normal = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), place, has_normal, normal))
