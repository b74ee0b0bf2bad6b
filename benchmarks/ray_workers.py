"""What workers on a Ray cluster cost against local ones, and how long training waits when a node dies.

    python benchmarks/ray_workers.py [--rounds 5] [--quick]

The cluster is three nodes on this machine: the training process's own, which lends nothing, and two that lend one core each.
All share this machine's cores and its loopback network, so what is measured is the cost of the way through Ray. A sample is an
image of 224 x 224 bytes with some milliseconds of NumPy; the loop does nothing but ask for the next batch. Of each is told

same      whether every batch of both is equal, byte for byte
local     samples/s of two worker processes
ray       samples/s of two actors, in turn with the former; persistent workers, without the first epoch
ratio     ray / local; 95% interval
cpu       CPU milliseconds per sample of an epoch with actors: of the training process, the actors, and Ray's own processes
bound     samples/s that the network carries at most, as the loader reports it
stall     seconds: the longest wait for a batch after a node was killed, less the median wait
lost      samples that did not arrive in an epoch in which a node was killed

Prints one JSON line, and writes what was measured to benchmarks/results/ray/workers.json. `--quick` writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from ray.cluster_utils import Cluster
from torch.utils.data import Dataset

from hasten.data.loader import Loader
from hasten.stats import ratio_interval

RESULTS = Path(__file__).resolve().parent / "results" / "ray" / "workers.json"
BATCH = 32
KILLED_AT = 6  # batches into an epoch


class Images(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = np.random.randint(0, 256, (224, 224, 3), np.uint8)
        for _ in range(16):
            image = image[::-1, :, ::-1] // 2 + np.roll(image, index, axis=1) // 2
        return torch.from_numpy(np.ascontiguousarray(image)), index


def loader_of(length: int, **arguments: Any) -> Loader[Any]:
    seeded = torch.Generator().manual_seed(0)
    return Loader(
        Images(length), BATCH, persistent_workers=True, num_workers=2, generator=seeded, shuffle=True, **arguments
    )


def are_same(one: Loader[Any], other: Loader[Any]) -> bool:
    return all(all(map(torch.equal, *batches)) for batches in zip(one, other, strict=True))


def rate(loader: Loader[Any], length: int) -> float:
    began = time.perf_counter()
    for _ in loader:
        pass
    return length / (time.perf_counter() - began)


def cpu_seconds() -> dict[str, float]:
    """CPU seconds of this process, of the actors, and of Ray's own processes, which are children of this one."""
    seconds = dict.fromkeys(("training", "actors", "ray"), 0.0)
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            name = " ".join(process.cmdline())
            kind = "training" if process == own else "actors" if "RayWorker" in name else "ray"
            seconds[kind] += sum(process.cpu_times()[:2])
    return seconds


def stall(cluster: Cluster, length: int) -> dict[str, float]:
    """Kill one of two nodes that lend a core each, and add another afterwards."""
    victim = cluster.add_node(num_cpus=1)
    while sum(node["Alive"] for node in ray.nodes()) < 4:
        time.sleep(0.1)
    loader = Loader(Images(length), BATCH, workers="ray", num_workers=3)
    waits: list[float] = []
    arrived: set[int] = set()
    asked = time.perf_counter()
    for number, (_, indices) in enumerate(loader):
        waits.append(time.perf_counter() - asked)
        arrived.update(indices.tolist())
        if number == KILLED_AT:
            cluster.remove_node(victim, allow_graceful=False)
        asked = time.perf_counter()
    while sum(node["Alive"] for node in ray.nodes()) > 3:
        time.sleep(0.1)
    after = waits[KILLED_AT + 1 :]
    return {"seconds": max(after) - statistics.median(waits), "lost": length - len(arrived)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds, length = (1, 320) if options.quick else (options.rounds, 960)
    load = os.getloadavg()[0]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    os.environ["RAY_ADDRESS"] = cluster.address
    ray.init(log_to_driver=False, logging_level="ERROR")
    try:
        sides = {"local": loader_of(length), "ray": loader_of(length, workers="ray")}
        same = are_same(*sides.values())
        rates: dict[str, list[float]] = {"local": [], "ray": []}
        for name in sides:
            rate(sides[name], length)
        for number in range(rounds):
            for name in sorted(sides, reverse=bool(number % 2)):
                rates[name].append(rate(sides[name], length))
        before = cpu_seconds()
        rate(sides["ray"], length)
        cpu = {kind: 1e3 * (seconds - before[kind]) / length for kind, seconds in cpu_seconds().items()}
        cluster_report = sides["ray"].stats().cluster
        assert cluster_report is not None
        sides.clear()
        deaths = [stall(cluster, length) for _ in range(1 if options.quick else 3)]
    finally:
        ray.shutdown()
        cluster.shutdown()
    ratio = ratio_interval(rates["ray"], rates["local"]) if rounds > 1 else None
    told = {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
            "load_before": load,
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "ray": ray.__version__},
        "same": same,
        "samples": length,
        "samples_per_second": rates,
        "ratio": ratio and {"value": ratio.value, "low": ratio.low, "high": ratio.high},
        "cpu_ms_per_sample": cpu,
        "bytes_per_sample": cluster_report.bytes_per_sample,
        "network_samples_per_second": cluster_report.samples_per_second,
        "deaths": deaths,
    }
    if not options.quick:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    medians = {name: round(statistics.median(found)) for name, found in rates.items()}
    print(json.dumps({**told, "samples_per_second": medians}))


if __name__ == "__main__":
    main()
