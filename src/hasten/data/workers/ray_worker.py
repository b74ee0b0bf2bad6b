"""The actor that builds samples on a node of a Ray cluster."""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hasten.data.layout.packing import reduce_array
from hasten.data.workers.tasks import Result, Task
from hasten.data.workers.worker import prepare

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Answer = tuple[Result, Bytes | None]
"""A result without its `memory`, and that memory: Ray carries an array as it is, and would pickle a bytearray."""


class RayWorker:
    """Builds the samples of one task at a time."""

    def __init__(self, path: Sequence[str]) -> None:
        """`path` is where the training process looks for modules."""
        sys.path.extend(folder for folder in path if folder not in sys.path)
        self._result_of: Callable[[Task], Result] | None = None

    def versions(self, packages: Sequence[str]) -> dict[str, str | None]:
        """Return the versions of Python and of these packages here."""
        return versions(packages)

    def load(self, config: Bytes, number: int) -> None:
        """Unpickle the worker configuration, and make this process a worker with this number."""
        from ray import cloudpickle

        note = memoryview(bytearray(16)).cast("q")
        self._result_of, _ = prepare(cloudpickle.loads(config.tobytes()), number, None, note, _pickler())

    def build(self, task: Task) -> Answer:
        """Run a task, which has no slot."""
        assert self._result_of is not None
        result = self._result_of(task)
        memory, result.memory = result.memory, None
        return result, None if memory is None else np.frombuffer(memory, np.uint8)

    def transfer(self, size: int) -> Bytes:
        """Return so many bytes."""
        return np.ones(size, np.uint8)


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Return the versions of Python and of packages; None where a package is missing or has none."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = str(importlib.import_module(name).__version__)
        except (ImportError, AttributeError):
            found[name] = None
    return found


def _pickler() -> Any:
    """A pickler that sends classes of the training script by value: they cannot be imported here."""
    from ray import cloudpickle

    class Pickler(cloudpickle.Pickler):  # pyright: ignore
        def reducer_override(self, obj: Any, /) -> Any:
            reduced = reduce_array(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    return Pickler
