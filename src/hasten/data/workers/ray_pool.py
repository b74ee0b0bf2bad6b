"""Workers on the machines of a Ray cluster: one actor for each core, and results through Ray's object store.

Ray starts the actors, carries tasks and results, and notices dead nodes. What is decided here is which actor gets a task, and
that the tasks of a dead actor go to others.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hasten.data.layout.arena import Arena
from hasten.data.workers.ray_checks import (
    SAME_PLACES,
    ClusterReport,
    Lent,
    check_samples,
    check_versions,
    counted,
    get,
    last_line,
    transfer_rate,
)
from hasten.data.workers.ray_worker import Answer, RayWorker
from hasten.data.workers.tasks import Result, Task, WorkerConfig
from hasten.errors import ClusterError, WorkerDiedError

MAX_OPEN = 2  # tasks per actor: one is being built, and one waits there
CONNECT_SECONDS = 10.0
BY_LOADER = "workers='ray'"
MAX_DEATHS = 3  # actors that a task may outlive: a sample that kills its process must not kill them all


def find_ray(asked: str = BY_LOADER) -> Any:
    """Return the module `ray`. Raises ImportError with a hint if it is not installed. `asked` is what needs it."""
    try:
        import ray
    except ImportError:
        raise ImportError(f"{asked} needs Ray: pip install 'hasten[ray]'") from None
    return ray


def connected(asked: str = BY_LOADER) -> Any:
    """Return the module `ray`, connected to a cluster that runs already; none is ever started here.

    Args:
        asked: what needs it, for messages.

    Raises:
        ImportError: if Ray is not installed.
        ClusterError: if no cluster runs.
    """
    ray = find_ray(asked)
    if ray.util.client.ray.is_connected() or os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        raise ClusterError(f"{asked} cannot use Ray Client (ray://): start the script on a node of the cluster")
    if not ray.is_initialized():
        try:
            _check_address(os.environ.get("RAY_ADDRESS", "auto"))
            ray.init(address="auto", logging_level="WARNING")
        except Exception as error:
            raise ClusterError(
                f"{asked} found no running Ray cluster: start one with `ray start --head`, or name its address in "
                f"RAY_ADDRESS ({last_line(error)})"
            ) from None
    return ray


def _check_address(address: str) -> None:
    """Raise OSError where nothing listens: Ray would wait for it for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def cores(
    nodes: Sequence[dict[str, Any]], here: str, number: int | None, *, rank: int = 0, world: int = 1
) -> list[str]:
    """Return for each worker the id of its node: one for each core, in turn over the nodes.

    Args:
        nodes: as `ray.nodes()` returns them.
        here: id of the training process's node. Its cores are used last, and only if `number` needs them or there are no others.
        number: of workers; None: all.
        rank: of the training process.
        world: number of training processes, which share the cores.

    Raises:
        ClusterError: if there are fewer cores.
    """
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: node["NodeID"])
    turns = sorted((turn, node["NodeID"]) for node in alive for turn in range(int(node["Resources"].get("CPU", 0))))
    others = [node for _, node in turns if node != here]
    own = [node for _, node in turns if node == here]
    lent = (others or own if number is None else others + own)[rank::world]
    if len(lent) < max(1, number or 0):
        share = f" for each of {world} training processes" if world > 1 else ""
        asked = "" if number is None else f"num_workers={number}, but "
        raise ClusterError(
            f"{asked}the Ray cluster has {counted(len(lent), 'CPU')}{share}: join more nodes, or use fewer"
        )
    return lent[:number]


class RayPool:
    """A pool of Ray actors. Each pool has its own, and kills them when it is closed."""

    is_process = True
    shares_memory = False

    def __init__(
        self, config: WorkerConfig, arena: Arena, *, number: int | None, report: Callable[[ClusterReport], None]
    ) -> None:
        """Start the actors.

        Args:
            config: the loader's worker configuration.
            arena: where the slots of tasks are, in this process.
            number: of actors; None: one for each CPU that is lent.
            report: is called before the first task is sent.

        Raises:
            ClusterError: if the cluster cannot build the samples.
        """
        self._ray = connected()
        self._arena = arena
        self._report = report
        self._is_checked = False
        self._open: dict[Any, tuple[Lent, Task]] = {}
        """By the reference to the result."""
        self._waiting: deque[Task] = deque()
        """Tasks of dead actors."""
        self._deaths: Counter[int] = Counter()
        if is_in_use():
            gc.collect()  # an iterator that a caught exception refers to still holds its CPUs
        self._workers: list[Lent] = []
        self._actors: list[Any] = []
        """All that were started, dead ones too."""
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._ray, self._actors)
        _pools.add(self)
        try:
            while (started := self._start_unless_died(config, number)) is None:
                pass
        except BaseException:
            self.close()
            raise
        (self._reference,) = started
        self.num_workers = len(self._workers)

    def _start_unless_died(self, config: WorkerConfig, number: int | None) -> tuple[Lent | None] | None:
        """Start the actors; return None if a node was dead, which Ray notices only after some seconds."""
        try:
            return (self._start(config, number),)
        except ClusterError:
            alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
            if all(worker.node in alive for worker in self._workers):
                raise
            self._workers.clear()
            _kill(self._ray, self._actors)
            return None

    def _start(self, config: WorkerConfig, number: int | None) -> Lent | None:
        """Start the actors; return one more for this node if it has none: it builds what the others' is compared with."""
        ray = self._ray
        nodes: list[dict[str, Any]] = ray.nodes()
        here: str = ray.get_runtime_context().get_node_id()
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        lent = cores(nodes, here, number, rank=rank, world=world)
        try:
            packed = ray.cloudpickle.dumps(replace(config, num_workers=len(lent), max_workers=len(lent)))
        except Exception as error:
            raise ClusterError(
                "workers='ray' sends the dataset, collate_fn and worker_init_fn to other processes, and they cannot be "
                f"pickled: {last_line(error)}"
            ) from None
        names = {node["NodeID"]: f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in nodes}
        self._workers += [self._started(node, names[node], num_cpus=1) for node in lent]
        reference = None if here in lent else self._started(here, names[here], num_cpus=0)
        started = self._workers if reference is None else [*self._workers, reference]
        check_versions(ray, started, config.dataset)
        shared = ray.put(np.frombuffer(packed, np.uint8))  # one copy for each node
        loading = [worker.actor.load.remote(shared, at) for at, worker in enumerate(started)]
        for worker, loaded in zip(started, loading):
            get(ray, worker, loaded, f"cannot load the dataset ({SAME_PLACES})")
        return reference

    def _started(self, node: str, name: str, *, num_cpus: int) -> Lent:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._ray.remote(RayWorker).options(num_cpus=num_cpus, scheduling_strategy=where)
        self._actors.append(actor.remote(sys.path))
        return Lent(self._actors[-1], node, name)

    def _check(self, task: Task) -> None:
        """Compare what the nodes build, measure the network, and report both."""
        here = self._ray.get_runtime_context().get_node_id()
        nodes = {worker.node: worker for worker in reversed(self._workers)}
        size = check_samples(self._ray, [*nodes.values()], self._reference or nodes[here], task)
        rate = transfer_rate(self._ray, [*nodes.values()])
        if self._reference is not None:
            self._ray.kill(self._reference.actor)
            self._reference = None
        self._report(ClusterReport(len(self._workers), len(nodes), size, rate))

    # Tasks

    def send(self, task: Task) -> bool:
        """Send a task to the actor with the fewest; False if each has enough."""
        self._check_session()
        if not self._is_checked:
            try:
                self._check(task)
            except BaseException:
                self.close()
                raise
            self._is_checked = True
        return self._resend() and self._give(task)

    def _give(self, task: Task) -> bool:
        worker = min(self._workers, key=lambda worker: worker.num_open)
        if worker.num_open >= MAX_OPEN:
            return False
        worker.num_open += 1
        self._open[worker.actor.build.remote(replace(task, slot=None))] = worker, task
        return True

    def _resend(self) -> bool:
        """Send the tasks of dead actors to others; False if some are left."""
        while self._waiting and self._give(self._waiting[0]):
            self._waiting.popleft()
        return not self._waiting

    def receive(self, timeout: float | None) -> list[Result]:
        """Return results, or [] if none came within `timeout` seconds.

        Raises:
            WorkerDiedError: if no actor is left, or one batch kills whichever builds it.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check_session()
            self._resend()
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._ray.wait([*self._open], timeout=left)[0]:
                return []
            ready, _ = self._ray.wait([*self._open], num_returns=len(self._open), timeout=0)
            results = [result for reference in ready if (result := self._take(reference)) is not None]
            if results:
                self._resend()
                return results

    def _take(self, reference: Any) -> Result | None:
        """Return the result; None if it is lost, and its task goes to another actor."""
        worker, task = self._open.pop(reference, (None, None))
        if worker is None or task is None:
            return None  # of an actor that was found dead a moment ago
        worker.num_open -= 1
        failures = self._ray.exceptions
        try:
            answer: Answer = self._ray.get(reference)
        except (failures.RayActorError, failures.NodeDiedError, failures.WorkerCrashedError) as error:
            self._lose(worker, task, last_line(error))
            return None
        except (failures.ObjectLostError, failures.ObjectFetchTimedOutError):  # the node died before it was fetched
            self._waiting.append(task)
            return None
        result, memory = answer
        if memory is not None and task.slot is not None and memory.nbytes <= task.slot.size:
            self._arena.view(task.slot)[: memory.nbytes] = memory.data
            result.in_slot = True
        elif memory is not None:
            result.memory = bytearray(memory.data)  # Ray's own is read-only
        return result

    def _lose(self, worker: Lent, task: Task, error: str) -> None:
        """Have others run the tasks of a dead actor. Its late results are ignored: no reference to them is left."""
        self._workers.remove(worker)
        self.num_workers -= 1
        with contextlib.suppress(Exception):
            self._ray.kill(worker.actor)  # if it was only out of reach
        others = [reference for reference, (owner, _) in self._open.items() if owner is worker]
        tasks = [task, *(self._open.pop(reference)[1] for reference in others)]
        self._waiting.extend(tasks)
        self._deaths.update(task.batch for task in tasks)
        if not self._workers:
            self.close()
            raise WorkerDiedError(f"no Ray worker is left; the last one was on node {worker.name}: {error}")
        for task in tasks:
            if self._deaths[task.batch] >= MAX_DEATHS:
                self.close()
                raise WorkerDiedError(
                    f"{MAX_DEATHS} Ray workers died while building the batch of samples {task.indices[0]!r} to "
                    f"{task.indices[-1]!r}; the last one was on node {worker.name}: {error}"
                )

    def recall(self) -> list[Task]:
        """Take back the tasks that no actor has received."""
        recalled = [*self._waiting]
        self._waiting.clear()
        return recalled

    def resize(self, num_workers: int) -> None:
        """Do nothing: the cores are lent for as long as the pool is open."""

    def _check_session(self) -> None:
        if not self._ray.is_initialized():  # Ray's functions would start a cluster
            raise ClusterError("Ray was shut down while a loader was using it: call ray.shutdown() after the loop")

    def close(self) -> None:
        """Kill the actors."""
        self._open.clear()
        _pools.discard(self)
        self._finalizer()


_pools: weakref.WeakSet[RayPool] = weakref.WeakSet()


def is_in_use() -> bool:
    """Whether a loader of this process has workers on a Ray cluster."""
    return bool(_pools)


def _end(owner: int, ray: Any, actors: list[Any]) -> None:
    if os.getpid() != owner:
        return  # a forked child drops its copy: the actors belong to its parent
    if ray.is_initialized():  # otherwise they ended with the session
        _kill(ray, actors)


def _kill(ray: Any, actors: list[Any]) -> None:
    for actor in actors:
        with contextlib.suppress(Exception):  # it is dead
            ray.kill(actor)
    actors.clear()
