"""Resume mid-epoch without building the samples of earlier batches.

The state consists of plain values that `torch.load(weights_only=True)` accepts. The number of workers may change. A sampler
may hide what its order depends on; so the state holds a checksum of the indices so far, and a resumed epoch whose earlier
indices differ is refused.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hasten.errors import StateError

VERSION = 2
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the default repr of an object: another one in each process
GENERATORS = {"own", "torch", "python", "numpy"}


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
    checksum: int = 0
    """Of their indices."""
    epochs: dict[str, int] = field(default_factory=dict)
    """The samplers' own counts of epochs, at the start of the epoch."""


class Checksums:
    """The indices of each batch, and a checksum of all so far for each that was not returned yet."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self._keys = iter(keys)
        self._last = 0
        self._waiting: deque[int] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        keys = next(self._keys)
        is_vector = isinstance(keys, torch.Tensor)
        plain = keys.numpy().tobytes() if is_vector else _ADDRESS.sub("", repr(keys)).encode()
        self._last = zlib.crc32(plain, self._last)
        self._waiting.append(self._last)
        return keys

    def take(self, count: int) -> int | None:
        """The checksum up to the next `count` batches; None if there were fewer."""
        if count > len(self._waiting):
            return None
        return [self._waiting.popleft() for _ in range(count)][-1]


def to_state(position: Position | None) -> dict[str, Any]:
    """Return the state of a loader, in an epoch or between two."""
    return {"hasten_loader": VERSION, "position": None if position is None else dict(vars(position))}


def from_state(state: Any, *, batch_size: int | None) -> Position | None:
    """Return the position stored in a state. Raises StateError if it does not come from such a loader."""
    if not isinstance(state, dict) or state.get("hasten_loader") != VERSION:
        raise StateError("this is not the state of a hasten.Loader; pass the value that its state_dict() returned")
    if state.get("position", state) is None:
        return None
    try:
        position = Position(**state["position"])
        missing = GENERATORS - {*position.generators}
    except (KeyError, TypeError) as error:
        raise StateError(f"the state of a hasten.Loader is incomplete or corrupt: {error}") from None
    if missing:
        raise StateError(f"the state of a hasten.Loader is incomplete: it lacks {', '.join(sorted(missing))}")
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
