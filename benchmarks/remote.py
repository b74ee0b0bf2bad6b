"""What an epoch over HTTP takes, against what the link allows; and the second one, against local files.

    python benchmarks/remote.py [--objects 1000] [--size 200000] [--delay 0.05] [--rate 20e6] [--rounds 3] [--quick]

A server in a process of its own, on this machine, answers each request after `delay` seconds, and sends `rate` bytes per
second to all of them together. Samples are whole objects, in a shuffled order, read by two workers.

bound   seconds that the link needs: two round trips (what identifies an object, and its bytes), then all bytes at its rate
plain   seconds of an epoch of torch's DataLoader, measured on the first tenth of the samples
cold    seconds of the first epoch of hasten.Loader with `disk_cache`, workers' start included; a new cache in each round
second  seconds of a later epoch, from the disk
local   seconds of an epoch of hasten.Loader over as many bytes in local files, in turn with `second`
faults  the first epoch again, with 1% of the requests failing and one in 200 bodies stalling for 5 seconds

Prints one JSON line and writes it to results/remote/http.json (`--quick`: on little data, and writes nothing).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fsspec
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from hasten import Loader

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results" / "remote" / "http.json"
BATCH = 10
EPOCHS = 9  # from the disk and of local files, in turn; their median counts


class Objects(Dataset):
    """Whole objects as tensors; local paths and URLs alike."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with fsspec.open(self.paths[index], "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def serve(link: Connection, options: argparse.Namespace) -> None:
    """Serve until asked to stop; a request for faults, or for counts, comes over the link."""
    sys.path.append(str(ROOT / "tests" / "data"))
    from remote_server import Server

    with Server() as server:
        generator = random.Random(0)
        server.objects = {f"{at}.bin": generator.randbytes(options.size) for at in range(options.objects)}
        server.delay, server.bytes_per_second = options.delay, options.rate
        link.send(server.url)
        while (asked := link.recv()) != "stop":
            if asked == "faults":
                server.fails = lambda method, name, number: generator.random() < 0.01
                server.stalls = lambda name, number: 5.0 if number == 1 and generator.random() < 0.005 else 0.0
            link.send((sum(server.bodies.values()), server.most_open))
            server.bodies.clear()
            server.most_open = 0


def epoch(loader: DataLoader[Any]) -> float:
    began = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began


def ours(paths: list[str]) -> Loader[Any]:
    return Loader(Objects(paths), batch_size=BATCH, shuffle=True, num_workers=2, disk_cache="4 GiB")


def new_cache() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    os.environ["HASTEN_CACHE"] = folder.name
    return folder


def local_files(folder: str, options: argparse.Namespace) -> list[str]:
    paths = [os.path.join(folder, f"{at}.bin") for at in range(options.objects)]
    for path in paths:
        Path(path).write_bytes(os.urandom(options.size))
    return paths


def measure(options: argparse.Namespace) -> dict[str, Any]:
    fsspec.get_filesystem_class("http")  # imported here once, and not by each worker
    context = multiprocessing.get_context("spawn")
    link, other = context.Pipe()
    server = context.Process(target=serve, args=(other, options), daemon=True)
    server.start()
    url = link.recv()
    urls = [f"{url}/{at}.bin" for at in range(options.objects)]

    def asked(what: str) -> tuple[int, int]:
        link.send(what)
        return link.recv()

    rounds: list[dict[str, float]] = []
    few = max(BATCH, options.objects // 10)
    for _ in range(options.rounds):
        plain = epoch(DataLoader(Subset(Objects(urls), range(few)), batch_size=BATCH, num_workers=2))
        asked("counts")
        with new_cache(), tempfile.TemporaryDirectory() as folder:
            loader = ours(urls)
            cold = epoch(loader)
            num_bodies, most_open = asked("counts")
            files = Loader(Objects(local_files(folder, options)), batch_size=BATCH, shuffle=True, num_workers=2)
            pairs = [(epoch(loader), epoch(files)) for _ in range(EPOCHS)]
            assert num_bodies == options.objects and asked("counts")[0] == 0
        second, local = (statistics.median(times) for times in zip(*pairs))
        rounds.append(
            {"plain": plain * options.objects / few, "cold": cold, "second": second, "local": local}
            | {"most_open": most_open}
        )
    asked("faults")
    with new_cache():
        loader = ours(urls)
        faults: dict[str, Any] = {"cold": epoch(loader)}
        counts = loader.stats().cache.remote
        faults |= {"retries": counts.num_retries, "direct": counts.num_direct, "downloads": counts.num_downloads}
    link.send("stop")
    server.join()
    bound = 2 * options.delay + options.objects * options.size / options.rate
    middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return {
        "benchmark": "remote",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "started": time.time(),
        "load_before": os.getloadavg()[0],
        "data": {name: getattr(options, name) for name in ("objects", "size", "delay", "rate", "rounds")},
        "bound": bound,
        "rounds": rounds,
        "median": middle,
        "cold_over_bound": middle["cold"] / bound,
        "plain_over_cold": middle["plain"] / middle["cold"],
        "second_over_local": statistics.median(one["second"] / one["local"] for one in rounds),
        "faults": faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--size", type=int, default=200_000, help="bytes of an object")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=20e6, help="bytes per second of all answers together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.objects, options.rounds = min(options.objects, 300), 1
    found = measure(options)
    print(json.dumps(found))
    if not options.quick:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
