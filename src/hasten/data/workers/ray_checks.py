"""Checks before workers on a Ray cluster start: equal versions, equal samples, and what the network carries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hasten.data.layout.packing import unpack
from hasten.data.workers.ray_worker import Answer, Bytes, versions
from hasten.data.workers.tasks import Task
from hasten.errors import ClusterError

START_SECONDS = 60.0  # for an actor to start and to import torch
NUM_PROBES = 3  # samples that each node builds for comparison
TRANSFER_BYTES = 4 << 20  # per node, to measure the network
SAME_PLACES = "its data and modules must be at the same paths on every node"


@dataclass(eq=False)
class Lent:
    """An actor, as seen by the training process."""

    actor: Any
    node: str
    """The node's id."""
    name: str
    """The node's address, and the start of its id."""
    num_open: int = 0
    """Tasks that it has."""


@dataclass(frozen=True)
class ClusterReport:
    """What was found of a Ray cluster before its workers started."""

    num_workers: int
    num_hosts: int
    bytes_per_sample: float | None
    """Mean of the samples that were compared; None if they could not be built."""
    bytes_per_second: float
    """Rate at which all nodes together sent bytes to this one."""

    @property
    def samples_per_second(self) -> float | None:
        """The most samples per second that the network carries."""
        return self.bytes_per_second / self.bytes_per_sample if self.bytes_per_sample else None

    def line(self) -> str:
        """Return the report as one line."""
        line = f"hasten: ray: {counted(self.num_workers, 'worker')} on {counted(self.num_hosts, 'host')}; "
        if self.bytes_per_sample is None or self.samples_per_second is None:
            return f"{line}the network carries at most about {self.bytes_per_second / 1e6:,.0f} MB/s"
        size, rate = self.bytes_per_sample / 1e3, float(f"{self.samples_per_second:.2g}")
        return f"{line}{size:,.3g} KB a sample; the network carries at most about {rate:,.0f} samples/s"


def check_versions(ray: Any, workers: Sequence[Lent], dataset: Any) -> None:
    """Check that each worker has the versions of this process. Raises ClusterError."""
    packages = ["torch", "numpy", "hasten", *_packages_of(dataset)]
    expected = versions(packages)
    asked = [worker.actor.versions.remote(packages) for worker in workers]
    _, late = ray.wait(asked, num_returns=len(asked), timeout=START_SECONDS)
    if late:
        raise ClusterError(
            f"{counted(len(late), 'Ray worker')} of {len(asked)} did not start within {START_SECONDS:.0f} s; if the cluster's "
            "CPUs are in use, give each loader a num_workers= that leaves enough for the others"
        )
    for worker, reference in zip(workers, asked):
        found = get(ray, worker, reference, "cannot start a worker (hasten must be installed on every node)")
        for name, version in expected.items():
            if found[name] != version:
                has = "no" if found[name] is None else f"version {found[name]} of"
                raise ClusterError(
                    f"node {worker.name} has {has} {name}, and this one has {version}: install the same version on each"
                )


def _packages_of(dataset: Any) -> list[str]:
    """The top-level packages of a dataset and of those that it wraps."""
    found: list[str] = []
    while dataset is not None and len(found) < 8:
        found.append(type(dataset).__module__.partition(".")[0])
        dataset = getattr(dataset, "dataset", None)
    return [name for name in dict.fromkeys(found) if name not in ("__main__", "torch", "builtins")]


def check_samples(ray: Any, workers: Sequence[Lent], reference: Lent, task: Task) -> float | None:
    """Check that each node builds the first samples of a task as `reference` does; return their mean size in bytes.

    Raises:
        ClusterError: if one does not.
    """
    probes = [
        replace(task, batch=-1, start=0, kind="whole", indices=[index], occurrences=occurrences, length=1, slot=None)
        for at, index in enumerate(task.indices[:NUM_PROBES])
        for occurrences in [None if task.occurrences is None else task.occurrences[at : at + 1]]
    ]
    asked = [(worker, [worker.actor.build.remote(probe) for probe in probes]) for worker in (reference, *workers)]
    expected, *found = [
        (worker, [get(ray, worker, one, "cannot build samples") for one in references])
        for worker, references in asked
    ]
    for worker, answers in found:
        for probe, one, other in zip(probes, expected[1], answers):
            _compare(worker.name, probe.indices[0], one, other)
    sizes = [len(result.value) + result.num_bytes for result, _ in expected[1] if result.error is None]
    return sum(sizes) / len(sizes) if sizes else None


def _compare(node: str, index: Any, one: Answer, other: Answer) -> None:
    (expected, memory), (found, others) = one, other
    if expected.error is not None and found.error is not None:
        return  # a bad sample
    if found.error is not None:
        error = last_line(getattr(found.error, "exc_msg", found.error))
        raise ClusterError(f"node {node} cannot build sample {index!r} ({SAME_PLACES}): {error}")
    same = expected.error is None and np.array_equal(_filled(memory), _filled(others))
    if not same or (expected.value != found.value and repr(_value(one)) != repr(_value(other))):
        raise ClusterError(
            f"node {node} builds other bytes for sample {index!r} than this one: its CPU or its libraries compute "
            "differently, or the dataset draws from a generator of its own; leave the node out, or use workers='processes'"
        )


def _filled(memory: Bytes | None) -> Bytes:
    return np.empty(0, np.uint8) if memory is None else memory


def _value(answer: Answer) -> Any:
    return unpack(answer[0].value, memoryview(bytearray(_filled(answer[1]).data)))


def transfer_rate(ray: Any, workers: Sequence[Lent]) -> float:
    """Measure bytes per second from all nodes at once, after a transfer that opens the connections."""
    rate = 0.0
    for _ in range(2):
        began = time.perf_counter()
        ray.get([worker.actor.transfer.remote(1) for worker in workers])
        trip = time.perf_counter() - began
        began = time.perf_counter()
        left = [worker.actor.transfer.remote(TRANSFER_BYTES) for worker in workers]
        rate = 0.0
        while left:
            ready, left = ray.wait(left)
            seconds = time.perf_counter() - began
            ray.get(ready)
            rate += TRANSFER_BYTES / max(seconds - trip, 0.1 * seconds)
    return rate


def get(ray: Any, worker: Lent, reference: Any, failure: str) -> Any:
    """Return a worker's answer. Raises ClusterError if it has none, with `failure` in its message."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        message = f"{type(cause).__name__}: {last_line(cause)}"
        raise ClusterError(f"node {worker.name} {failure}: {message}") from None


def last_line(error: object) -> str:
    """The last line of a message: the others are where it comes from."""
    return str(error).strip().rpartition("\n")[2].strip()


def counted(number: int, name: str) -> str:
    """Return "1 host" or "3 hosts"."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
