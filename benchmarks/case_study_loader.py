"""The loader of two case studies by itself: what a share held gains, and how near it is to what the cores can make.

`case_studies.py` asks; each side is measured in a process of its own, which `asked` starts.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from case_study_common import FOLDERS, copies, scratch, shown

from hasten.folders import BUNDLED
from hasten.stats import paired_speedup

SHARES = (0.25, 0.5, 0.75, 1.0)
EPOCH = (
    16  # copies of the photographs are what `held` calls an epoch: shorter ones are over before the workers are busy
)
ASKED = 0.95  # of the work of what is held is to be saved
SECONDS, EPOCHS = 6.0, 4  # that feeding is measured


def held(data: Path, wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Second epochs of the loader alone against the first, which fills the cache, and against epochs without one."""
    with copies(data / FOLDERS["superres"], EPOCH) as folder:
        yield "held", held_of(folder, wanted)


def held_of(folder: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    need = epoch_seconds(folder, budget=1 << 32)["bytes"]
    found: dict[str, Any] = {"bytes": need, "file_bytes": file_bytes(folder), "shares": {}}
    for share in SHARES:
        with_cache, without, filling, kept = [], [], [], []
        for number in range(wanted.rounds):
            for budget in (0, int(share * need * 1.02)) if number % 2 == 0 else (int(share * need * 1.02), 0):
                told = epoch_seconds(folder, budget=budget)
                (with_cache if budget else without).append(told["second"])
                if budget:
                    filling.append(told["first"])
                    kept.append(told["bytes"] / need)
        of_first, speedup = (paired_speedup(side, with_cache, looks=False) for side in (filling, without))
        share_held = statistics.fmean(kept)
        asked = 1 / (1 - ASKED * share_held)
        found["shares"][share] = {
            "held": share_held,
            "of_first": of_first,
            "speedup": speedup,
            "asked": asked,
            "seconds": {"first": filling, "second": with_cache, "without": without},
        }
        words = f"{shown(of_first)} times its first epoch, {shown(speedup)} epochs without a cache"
        print(f"held {share_held:.2f}: {words}, asked for {asked:.2f}", flush=True)
    return found


def disk(data: Path, wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Epochs of the loader alone: a third of the samples in memory and the rest on the disk, against none of them."""
    sides: dict[str, list[float]] = {"with": [], "without": []}
    with copies(data / FOLDERS["superres"], EPOCH) as folder:
        need = epoch_seconds(folder, budget=1 << 32)["bytes"]
        for number in range(wanted.rounds):
            for name in ("with", "without") if number % 2 == 0 else ("without", "with"):
                with scratch() as cache:
                    room = {"budget": int(need / 3), "cache": cache} if name == "with" else {"budget": 0}
                    sides[name].append(epoch_seconds(folder, **room)["second"])
    speedup = paired_speedup(sides["without"], sides["with"], looks=False)
    print(f"a third in memory, the rest on the disk: {shown(speedup)} epochs without a cache", flush=True)
    yield "disk", {"bytes": need, "ram_bytes": int(need / 3), "speedup": speedup, "seconds": sides}


def epoch_seconds(folder: Path, *, budget: int, cache: Path | None = None) -> dict[str, float]:
    """Epochs of the script's dataset, in a process of their own; `cache`: a folder for what memory does not hold."""
    return asked("--epochs-of", folder, budget, *([cache] if cache is not None else []))


def asked(*words: object) -> dict[str, float]:
    """What a process of its own measures."""
    command = [sys.executable, __file__, *map(str, words)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(told.stdout.splitlines()[-1])


def measure_epochs(folder: Path, budget: int, cache: str = "") -> None:
    """What `epoch_seconds` starts."""
    sys.path.insert(0, str(BUNDLED))
    import superres
    import torch
    from image_folder import unlabeled

    from hasten import Loader

    torch.set_num_threads(1)
    dataset = superres.PhotoPairs(unlabeled(folder)[0], 96, training=True)
    caches: dict[str, Any] = {"cache": budget or None}
    if cache:
        os.environ["HASTEN_CACHE"] = cache
        caches["disk_cache"] = "4 GiB"
    loader = Loader(dataset, 16, shuffle=True, num_workers=2, persistent_workers=True, **caches)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in loader:
            pass
        seconds.append(time.perf_counter() - start)
    cache = loader.stats().cache
    kept = sum(tier.num_bytes for tier in cache.tiers) if cache is not None else 0
    print(json.dumps({"first": seconds[0], "second": statistics.fmean(seconds[1:]), "bytes": kept}))


def file_bytes(folder: Path) -> int:
    sys.path.insert(0, str(BUNDLED))
    from image_folder import unlabeled

    return sum(path.stat().st_size for path, _ in unlabeled(folder)[0])


def feeding(data: Path, wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Seconds a sample of both, in turn: by the clock, and of the cores' time, which another's load changes less."""
    told: dict[str, list[dict[str, float]]] = {"ceiling": [], "loader": []}
    for number in range(wanted.rounds):
        for side in told if number % 2 == 0 else reversed([*told]):
            told[side].append(asked(f"--{side}-of", data / FOLDERS["feed"]))
    found: dict[str, Any] = {"rounds": told}
    for name in ("wall", "cpu"):
        share = paired_speedup(*([one[name] for one in rounds] for rounds in told.values()), looks=False)
        print(f"feeding: the loader at {shown(share)} of the ceiling by {name} time", flush=True)
        found[f"share_by_{name}"] = share
    yield "feeding", found


def feed_dataset(folder: Path) -> Any:
    sys.path.insert(0, str(BUNDLED))
    import feed
    import torch
    from image_folder import image_folder

    torch.set_num_threads(1)
    return feed.Photos(image_folder(folder)[0], 112, training=True)


def measure_ceiling(folder: Path) -> None:
    """What `feeding` starts: every core makes its share of the samples, again and again for some seconds."""
    dataset = feed_dataset(folder)
    number = os.cpu_count() or 1
    with ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("fork")) as pool:
        share = functools.partial(make_samples, dataset)
        list(pool.map(share, [1.0] * number))
        told = [one.result() for one in [pool.submit(share, SECONDS) for _ in range(number)]]
    told_seconds(*(sum(of_each) for of_each in zip(*told)), cores=number)


def make_samples(dataset: Any, seconds: float) -> tuple[int, float, float]:
    """How many samples one process makes, in how many seconds, of the clock and of its core."""
    order = random.Random(os.getpid()).choices(range(len(dataset)), k=len(dataset))
    start, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        dataset[order[count % len(order)]]
        count += 1
    return count, time.perf_counter() - start, time.process_time() - cpu


def told_seconds(count: int, wall: float, cpu: float, *, cores: int) -> None:
    """Seconds a sample; `wall` is summed over `cores`."""
    print(json.dumps({"wall": wall / cores / count, "cpu": cpu / count}))


def measure_loader(folder: Path) -> None:
    """What `feeding` starts: whole epochs, after a first one."""
    from hasten import Loader

    dataset = feed_dataset(folder)
    loader = Loader(dataset, 32, shuffle=True, num_workers=os.cpu_count() or 1, persistent_workers=True)
    for _ in loader:
        pass
    count, start, cpu = 0, time.perf_counter(), tree_seconds()
    for _ in range(EPOCHS):
        for batch, _ in loader:
            count += len(batch)
    told_seconds(count, time.perf_counter() - start, tree_seconds() - cpu, cores=1)


def tree_seconds() -> float:
    """CPU seconds of this process and of its workers."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (me, *me.children(recursive=True)))


MEASURED = {
    "--epochs-of": lambda folder, budget, *cache: measure_epochs(Path(folder), int(budget), *cache),
    "--ceiling-of": lambda folder: measure_ceiling(Path(folder)),
    "--loader-of": lambda folder: measure_loader(Path(folder)),
}

if __name__ == "__main__":
    MEASURED[sys.argv[1]](*sys.argv[2:])
