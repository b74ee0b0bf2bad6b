"""The five stories on real images: what each write-up tells of, measured.

    python benchmarks/stories.py DATA [--only tuned waiting held feeding limit grow] [--names NAME ...] [--budget 420s]

DATA holds photos/ and tiny/ (class folders), xray/ (films and labels.csv) and sr/ (photographs of any kind).

tuned   `hasten speedtest NAME --data DIR` for each story, its whole record
waiting the same for feed on one thread, so that the other cores are the loader's: the data wait that its plan leaves
held    superres: how fast its input is in the second epoch, by the share of the samples that the cache may hold, against
        epochs without a cache; 1 / (1 - 0.95 x share) is asked for
limit   superres in a control group with less memory than the samples take: with hasten's cache, and with the story's own
        dictionary; memory in every second of both, or how it died
feeding feed's photographs through the loader alone, nothing kept, against as many processes as there are cores that do
        nothing but make samples: the ceiling of any loader
grow    feed with `--grow` in an address space of ROOM bytes: by itself, and under `hasten run`

Prints tables and one JSON line; everything that was measured goes to benchmarks/results/stories/.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from hasten.cli.saved import nearest_run
from hasten.diagnosis.diagnose import diagnose
from hasten.records import Run, Tuning
from hasten.stats import Estimate, paired_speedup
from hasten.workloads.catalog import WORKLOADS
from hasten.workloads.folders import choose, read_classes, read_unlabelled

RESULTS = Path(__file__).resolve().parent / "results" / "stories"
FOLDERS = {"xray": "xray", "feed": "photos", "superres": "sr", "efficient": "tiny", "classify": "photos"}
SHARES = (0.25, 0.5, 0.75, 1.0)
EPOCH = 8  # times the photographs are what `held` calls an epoch: shorter ones are over before the workers are busy
REPEATS = 40  # of each photograph: prepared, all of them are twice what the limit allows
ROOM = 6 << 30  # bytes of address space; libraries and threads reserve two thirds of it
LIMIT = 1200 << 20  # bytes of a control group: torch and its libraries take half of it
ASKED = 0.95  # of the work of what is held is to be saved
SECONDS, EPOCHS = 6.0, 4  # that feeding is measured


def hasten(*words: object) -> list[str]:
    return [sys.executable, "-m", "hasten", *map(str, words)]


# ------------------------------------------------------------------------------------------------------ tuned


def tuned(data: Path, wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in wanted.names:
        yield name, speedtest(name, data, wanted, environment=None)


def speedtest(
    name: str, data: Path, wanted: argparse.Namespace, *, environment: dict[str, str] | None
) -> dict[str, Any]:
    """All that `hasten speedtest` tells of a story, and the run under its plan; or its error."""
    with scratch() as folder:
        load, start = os.getloadavg()[0], time.perf_counter()
        words = hasten("speedtest", name, "--data", (data / FOLDERS[name]).resolve(), "--json")
        if wanted.budget:
            words += ["--budget", wanted.budget]
        told = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)
        if told.returncode:
            return {"failed": told.stderr.strip().splitlines()[-1:]}
        found = {"load_before": load, "seconds": time.perf_counter() - start, **json.loads(told.stdout)}
        return {**found, "after": run_under_plan(found, folder)}


def run_under_plan(found: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The diagnosed run that had most of the plan, and nothing else."""
    near = nearest_run(msgspec.convert(found["tuning"], Tuning)) if found.get("tuning") else None
    if near is None:
        return None
    return json.loads((folder / ".hasten" / "runs" / near / "run.json").read_text(encoding="utf-8"))


def waiting(data: Path, wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """feed, where the cores suffice: training has one, and the loader the others."""
    found = speedtest("feed", data, wanted, environment={**os.environ, "OMP_NUM_THREADS": "1"})
    for side in ("run", "after"):
        if found.get(side):
            print(
                f"waiting, {side}: {100 * data_wait(msgspec.convert(found[side], Run)):.1f} % of the step", flush=True
            )
    yield "waiting", found


def data_wait(run: Run) -> float:
    """The share of a step that waits for its batch."""
    shown = diagnose(run).breakdown
    return (shown.phases["data_wait"] or 0.0) / shown.step_seconds


# ------------------------------------------------------------------------------------------------------- held


def held(data: Path, wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Second epochs of the loader alone, with and without a cache, in turn."""
    need = epoch_seconds(data, budget=1 << 40)["bytes"]
    found: dict[str, Any] = {"bytes": need, "file_bytes": file_bytes(data), "shares": {}}
    for share in SHARES:
        with_cache, without, kept = [], [], []
        for number in range(wanted.rounds):
            for budget in (0, int(share * need * 1.02)) if number % 2 == 0 else (int(share * need * 1.02), 0):
                told = epoch_seconds(data, budget=budget)
                (with_cache if budget else without).append(told["second"])
                if budget:
                    kept.append(told["bytes"] / need)
        speedup = paired_speedup(without, with_cache, looks=False)
        share_held = statistics.fmean(kept)
        asked = 1 / (1 - ASKED * share_held)
        found["shares"][share] = {
            "held": share_held,
            "speedup": speedup,
            "asked": asked,
            "seconds": [without, with_cache],
        }
        print(f"held {share_held:.2f}: {shown(speedup)}, asked for {asked:.2f}", flush=True)
    yield "held", found


def epoch_seconds(data: Path, *, budget: int) -> dict[str, float]:
    """Epochs of the story's dataset, in a process of their own."""
    return asked("--epochs-of", data / FOLDERS["superres"], budget)


def asked(*words: object) -> dict[str, float]:
    """What a process of its own measures."""
    command = [sys.executable, __file__, *map(str, words)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(told.stdout.splitlines()[-1])


def measure_epochs(folder: Path, budget: int) -> None:
    """What `epoch_seconds` starts."""
    sys.path.insert(0, str(WORKLOADS["superres"].script.parent))
    import superres
    import torch

    from hasten import Loader

    torch.set_num_threads(1)
    images = read_unlabelled(folder)
    part, _ = choose(images)
    dataset = superres.PhotographPairs(images, part * EPOCH, side=96, transform=superres.Cut(96, training=True))
    loader = Loader(dataset, 16, shuffle=True, num_workers=2, persistent_workers=True, cache=budget or None)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in loader:
            pass
        seconds.append(time.perf_counter() - start)
    cache = loader.stats().cache
    kept = sum(tier.num_bytes for tier in cache.tiers) if cache is not None else 0
    print(json.dumps({"first": seconds[0], "second": statistics.fmean(seconds[1:]), "bytes": kept}))


def file_bytes(data: Path) -> int:
    images = read_unlabelled(data / FOLDERS["superres"])
    part, _ = choose(images)
    return EPOCH * sum(images.paths[i].stat().st_size for i in part)


# ---------------------------------------------------------------------------------------------------- feeding


def feeding(data: Path, wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Samples a second of both, in turn."""
    rates: dict[str, list[float]] = {"ceiling": [], "loader": []}
    for number in range(wanted.rounds):
        for side in rates if number % 2 == 0 else reversed([*rates]):
            rates[side].append(asked(f"--{side}-of", data / FOLDERS["feed"])["rate"])
    share = paired_speedup(*([1 / rate for rate in side] for side in rates.values()), looks=False)
    print(f"feeding: the loader at {shown(share)} of the ceiling", flush=True)
    yield "feeding", {"share_of_ceiling": share, "samples_a_second": rates}


def feed_dataset(folder: Path) -> Any:
    sys.path.insert(0, str(WORKLOADS["feed"].script.parent))
    import feed
    import torch

    torch.set_num_threads(1)
    images = read_classes(folder)
    part, _ = choose(images)
    return feed.Photographs(images, part, side=128, transform=feed.Cut(112, training=True))


def measure_ceiling(folder: Path) -> None:
    """What `feeding` starts: every core makes its share of the samples, again and again for some seconds."""
    dataset = feed_dataset(folder)
    number = os.cpu_count() or 1
    with ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("fork")) as pool:
        share = functools.partial(make_samples, dataset)
        list(pool.map(share, [1.0] * number))
        told = [pool.submit(share, SECONDS) for _ in range(number)]
        print(json.dumps({"rate": sum(one.result() for one in told)}))


def make_samples(dataset: Any, seconds: float) -> float:
    """Samples a second of one process."""
    order = random.Random(os.getpid()).choices(range(len(dataset)), k=len(dataset))
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        dataset[order[count % len(order)]]
        count += 1
    return count / (time.perf_counter() - start)


def measure_loader(folder: Path) -> None:
    """What `feeding` starts: whole epochs, after a first one."""
    from hasten import Loader

    dataset = feed_dataset(folder)
    loader = Loader(dataset, 32, shuffle=True, num_workers=os.cpu_count() or 1, persistent_workers=True)
    count, start = 0, 0.0
    for number in range(1 + EPOCHS):
        if number == 1:
            start = time.perf_counter()
        for batch, _ in loader:
            count += len(batch) if number else 0
    print(json.dumps({"rate": count / (time.perf_counter() - start)}))


# ------------------------------------------------------------------------------------------------------ limit


@contextlib.contextmanager
def control_group(limit: int) -> Generator[Path | None]:
    """A memory control group of this process's own; None where none can be made."""
    own = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    path = next((line.split(":")[2] for line in own if ":memory:" in line), None)
    place = Path("/sys/fs/cgroup/memory" + (path or "")) / f"hasten-stories-{os.getpid()}"
    try:
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        yield None
        return
    try:
        yield place
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.1)


def limited(command: list[str], folder: Path, *, seconds: float) -> dict[str, Any]:
    """A command in a group of LIMIT bytes: how it ended, and the group's memory in every second."""
    with control_group(LIMIT) as group:
        if group is None:
            return {"note": "no memory control group can be made here"}
        inside = ["bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "-", *command]
        used: list[float] = []
        with (folder / "output.txt").open("wb") as output:
            start = time.perf_counter()
            process = subprocess.Popen(inside, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
            while process.poll() is None and time.perf_counter() - start < seconds:
                used.append(anonymous_bytes(group))
                time.sleep(1.0)
            over = process.poll() is None
            if over:
                process.kill()
            code = process.wait()
        said = (folder / "output.txt").read_text(errors="replace").splitlines()
        return {
            "limit": LIMIT,
            "exit_code": None if over else code,
            "seconds": time.perf_counter() - start,
            "bytes_each_second": used,
            "failed_charges": int((group / "memory.failcnt").read_text()),
            "said": [line for line in said if "Epoch" in line or "hasten" in line or "rror" in line][-12:],
        }


def anonymous_bytes(group: Path) -> float:
    """What the group holds that is no file's page cache: its own, and shared memory."""
    told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return float(told["total_rss"]) + float(told.get("total_shmem", 0))


def limit(data: Path, _wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    workload = WORKLOADS["superres"]
    story = [str(workload.script), "--data", str((data / FOLDERS["superres"]).resolve()), "--repeats", str(REPEATS)]
    story += ["--epochs", "3", "--blocks", "1", "--channels", "8"]
    for name, command in {
        "hasten's cache": hasten("run", "--set", 'cache="auto"', "--set", "loader=true", *story),
        "the story's dictionary": [sys.executable, *story, "--ram-cache"],
        "as it is": [sys.executable, *story],
    }.items():
        with scratch() as folder:
            result = {"side": name, **limited(command, folder, seconds=300.0)}
        peak = max(result.get("bytes_each_second", [0.0]))
        print(
            f"limit {name}: exit {result.get('exit_code')}, {peak / 2**20:.0f} of {LIMIT / 2**20:.0f} MiB", flush=True
        )
        yield f"limit: {name}", result


def grow(data: Path, _wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    story = [str(WORKLOADS["feed"].script), "--data", str((data / FOLDERS["feed"]).resolve()), "--grow"]
    story += ["--images", "600", "--epochs", "5", "--batch-size", "32"]
    for name, command in {
        "by itself": [sys.executable, *story],
        "under hasten run": hasten("run", "--set", "set_to_none=true", *story),
    }.items():
        within = functools.partial(resource.setrlimit, resource.RLIMIT_AS, (ROOM, ROOM))
        with scratch() as folder:
            told = subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=within)
        result = {"room": ROOM, "exit_code": told.returncode, "said": (told.stdout + told.stderr).splitlines()[-16:]}
        print(f"grow {name}: exit {told.returncode}; {'; '.join(result['said'][-2:])}", flush=True)
        yield f"grow: {name}", result


# ----------------------------------------------------------------------------------------------------- common


@contextlib.contextmanager
def scratch() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hasten-bench-stories-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shown(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def brief(name: str, result: dict[str, Any]) -> None:
    """One line of a tuned story."""
    tuning = result.get("tuning") or {}
    proof = tuning.get("proof") or {}
    speed = proof.get("sooner") or proof.get("speedup")
    told = shown(Estimate(speed["value"], speed["low"], speed["high"])) if speed else "no speedup"
    print(
        f"{name}: {told}, {proof.get('verdict', 'no proof')}, {result.get('seconds', 0):.0f} s, {tuning.get('settings')}",
        flush=True,
    )


QUESTIONS = {"tuned": tuned, "waiting": waiting, "held": held, "feeding": feeding, "limit": limit, "grow": grow}
MEASURED = {
    "--epochs-of": lambda folder, budget: measure_epochs(Path(folder), int(budget)),
    "--ceiling-of": lambda folder: measure_ceiling(Path(folder)),
    "--loader-of": lambda folder: measure_loader(Path(folder)),
}


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in MEASURED:
        MEASURED[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--names", nargs="+", choices=FOLDERS, default=list(FOLDERS), metavar="NAME")
    parser.add_argument("--budget", help="of each story's search")
    parser.add_argument("--rounds", type=int, default=4)
    wanted = parser.parse_args()
    random.seed(0)
    RESULTS.mkdir(parents=True, exist_ok=True)
    written: list[str] = []
    for question in wanted.only:
        for name, result in QUESTIONS[question](wanted.data.resolve(), wanted):
            path = RESULTS / f"{name.replace(': ', '_').replace(' ', '_').replace(chr(39), '')}.json"
            machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
            path.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n", encoding="utf-8")
            written.append(path.name)
            if question in ("tuned", "waiting"):
                brief(name, result)
    print(json.dumps({"benchmark": "stories", "written": written}))


if __name__ == "__main__":
    main()
