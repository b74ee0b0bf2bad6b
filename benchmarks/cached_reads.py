"""What the cache of library calls gains in plain training scripts that know nothing of it, and whether every bit stays.

    python benchmarks/cached_reads.py DATA [--photos DIR] [--only NAME ...] [--rounds 5] [--epochs 4] [--tune]

DATA is a scratch folder, in which each script's data is made where it is not there yet: of the JPEG files below DIR, or of
synthetic images of natural file sizes. The scripts lie in benchmarks/cached_reads/:

hf_arrow      a Hugging Face dataset: Arrow, encoded images (needs the package `datasets`)
tar_shards    photographs in tar files, as WebDataset has them, read by Python's tarfile
cv2_images    photographs read by OpenCV
numpy_scenes  small crops of 32 MiB .npy files
dicom         slices in DICOM files, RLE-compressed
mixed         a photograph, an OpenCV mask and a .npy vector a sample

Of each is told

same     whether every bit of the losses and of all batches is the same plain, under `hasten run --set cache=auto`, and with
         `--held`
hits     values that the cache had, of all that were asked for, in two epochs
gain     seconds of an epoch, from the second on, plain / cached; fresh processes in turn; 95 % interval
cpu      the same for CPU seconds of the whole process tree
ceiling  plain / held: what the libraries returned lies in the dataset's memory before training begins
share    what the cache saves of an epoch, of what holding everything saves
first    seconds of the first epoch, which fills the cache, cached / plain
tune     with --tune: whether `hasten tune` switches the cache on, and what it proves of its plan

Prints a table and one JSON line; everything that was measured goes to benchmarks/results/cached_reads.json as each script
ends. `--quick` runs everything once on little data, and writes no results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from case_study_common import hasten, scratch, shown
from loader_sides.process_tree import cpu_seconds
from regress import printed
from tune import first_run

from hasten.measurement.diagnose import diagnose
from hasten.records import Tuning
from hasten.stats import Estimate, mean_interval, ratio_interval

SCRIPTS = Path(__file__).resolve().parent / "cached_reads"
RESULTS = Path(__file__).resolve().parent / "results" / "cached_reads.json"
PACKAGES = {  # what the scripts import beside torch, NumPy and Pillow: module and package
    "hf_arrow": {"datasets": "datasets"},
    "tar_shards": {},
    "cv2_images": {"cv2": "opencv-python-headless"},
    "numpy_scenes": {},
    "dicom": {"pydicom": "pydicom"},
    "mixed": {"cv2": "opencv-python-headless"},
}
SIDES = ("plain", "cached", "held")
UNDER_CACHE = hasten("run", "--set", "cache=auto", "--")
EPOCH = re.compile(r"epoch \d+: (\d+) samples, ([0-9.]+) s, loss (.*)")
QUIET = 2.5  # seconds for which nothing is kept of a new file
ENDLESS = 100_000  # epochs, of a script whose launches hasten ends itself


@dataclass(frozen=True)
class Epoch:
    """What a script printed of an epoch, and the CPU seconds that its processes took for it."""

    num_samples: int
    seconds: float
    cpu_seconds: float
    loss: str


@dataclass(frozen=True)
class Script:
    """A script with its data, and how it is called."""

    name: str
    data: Path
    workers: int

    def words(self, *options: object) -> list[str]:
        return [str(SCRIPTS / f"{self.name}.py"), str(self.data), "--workers", str(self.workers), *map(str, options)]

    def command(self, side: str, *options: object) -> list[str]:
        if side == "cached":
            return [*UNDER_CACHE, *self.words(*options)]
        return [sys.executable, *self.words(*options, *(["--held"] if side == "held" else []))]


def epochs_of(command: list[str]) -> list[Epoch]:
    """Run a script in a process of its own. Raises RuntimeError where it fails, or runs without the cache that it should have."""
    found: list[Epoch] = []
    with scratch() as folder, (folder / "errors.txt").open("w+", encoding="utf-8") as errors:
        before = cpu_seconds()
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            told = EPOCH.match(line)
            if told is not None:
                now = cpu_seconds()
                found.append(Epoch(int(told[1]), float(told[2]), now - before, told[3]))
                before = now
        code = process.wait()
        errors.seek(0)
        trouble = errors.read()
    if code or not found:
        raise RuntimeError(f"{' '.join(command)}: exit code {code}\n{trouble[-2000:]}")
    if "is not applied" in trouble:
        raise RuntimeError(trouble[-2000:])
    return found


def identity(script: Script, *, epochs: int) -> dict[str, Any]:
    """The losses and digests of each side."""
    load = os.getloadavg()[0]
    told = {
        side: [epoch.loss for epoch in epochs_of(script.command(side, "--epochs", epochs, "--digest"))]
        for side in SIDES
    }
    return {"load_before": load, "same": told["plain"] == told["cached"] == told["held"], "epochs": told}


def hits(script: Script, *, epochs: int) -> dict[str, Any]:
    """What the cache did."""
    load = os.getloadavg()[0]
    command = [*UNDER_CACHE, __file__, "--counts-of", *script.words("--epochs", epochs)]
    with scratch() as folder:
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if told.returncode:
        raise RuntimeError(told.stderr[-2000:])
    return {"load_before": load, "epochs": epochs, **json.loads(told.stdout.splitlines()[-1])}


def run_and_count(words: list[str]) -> None:
    """What `hits` starts: a script under the cache, and then the cache's own counts."""
    import torch  # noqa: F401 - hasten begins its work as torch is imported

    from hasten.data.memo.memo import current

    memo = current()
    sys.argv, sys.path[0] = words, str(SCRIPTS)
    runpy.run_path(words[0], run_name="__main__")
    if memo is None:
        raise SystemExit("the cache is not on")
    counts = memo.counts()
    told = {"num_hits": counts.num_hits, "num_misses": counts.num_misses, "hit_rate": counts.hit_rate}
    print(json.dumps({**told, "value_bytes": counts.value_bytes, "source_bytes": counts.source_bytes}))


def compare(script: Script, *, rounds: int, epochs: int) -> dict[str, Any]:
    """All sides in fresh processes, the order turned round at every round."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            load = os.getloadavg()[0]
            told = epochs_of(script.command(side, "--epochs", epochs))
            runs[side].append({"load_before": load, "epochs": [asdict(epoch) for epoch in told]})
    return {**summary(runs), "runs": runs}


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Ratios of the sides; of each process, the mean of its epochs from the second on."""
    seconds, cpu, first = {}, {}, {}
    for side, of_side in runs.items():
        later = [run["epochs"][1:] for run in of_side]
        seconds[side] = [statistics.fmean(epoch["seconds"] for epoch in epochs) for epochs in later]
        cpu[side] = [
            sum(epoch["cpu_seconds"] for epoch in epochs) / sum(epoch["num_samples"] for epoch in epochs)
            for epochs in later
        ]
        first[side] = [run["epochs"][0]["seconds"] for run in of_side]
    shares = [(p - c) / (p - h) for p, c, h in zip(*(seconds[side] for side in SIDES))]
    return {
        "epoch_seconds": {side: statistics.median(of_side) for side, of_side in seconds.items()},
        "cpu_seconds_per_sample": {side: statistics.median(of_side) for side, of_side in cpu.items()},
        "gain": ratio_interval(seconds["plain"], seconds["cached"]),
        "cpu_gain": ratio_interval(cpu["plain"], cpu["cached"]),
        "ceiling": ratio_interval(seconds["plain"], seconds["held"]),
        "cpu_ceiling": ratio_interval(cpu["plain"], cpu["held"]),
        "share_of_ceiling": mean_interval(shares),
        "first_epoch": ratio_interval(first["cached"], first["plain"]),
    }


def tuned(script: Script, *, budget: str) -> dict[str, Any]:
    """Whether `hasten tune` switches the cache on, and what its plan is proven to gain."""
    load, start = os.getloadavg()[0], time.perf_counter()
    command = hasten("tune", "--json", "--budget", budget, "--", *script.words("--epochs", ENDLESS))
    with scratch() as folder:
        record = printed(subprocess.run(command, cwd=folder, capture_output=True, text=True))
        tuning = msgspec.convert(record["tuning"], Tuning)
        run, proof = first_run(tuning, folder), tuning.proof
    told = {
        "load_before": load,
        "seconds": time.perf_counter() - start,
        "is_in_plan": "cache" in tuning.settings,
        "settings": tuning.settings,
        "speedup": proof.speedup if proof is not None else None,
        "verdict": proof.verdict if proof is not None else "no plan",
        "guarantee": proof.guarantee if proof is not None else None,
        "checks": proof.checks if proof is not None else (),
        "trials_of_cache": [trial for trial in tuning.trials if "cache" in trial.added],
        "trials": [[trial.added, trial.verdict, trial.speedup] for trial in tuning.trials],
        "skipped": [f"{one.state}: {one.reason}" for one in tuning.skipped if one.fix == "cache"],
        "findings": [[finding.kind, finding.title] for finding in diagnose(run).findings],
        "loaders": [[loader.num_samples, loader.stages] for loader in run.facts.loaders],
        "notes": tuning.notes,
    }
    return msgspec.to_builtins(told)


def data_of(name: str, wanted: argparse.Namespace) -> Path:
    """The folder of a script's data."""
    words: list[object] = [SCRIPTS / "data.py", name, wanted.data.resolve(), "--samples", wanted.samples]
    if wanted.photos is not None:
        words += ["--photos", wanted.photos.resolve()]
    told = subprocess.run([sys.executable, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    place = Path(told.stdout.splitlines()[-1])
    time.sleep(max(0.0, min(QUIET, place.stat().st_mtime + QUIET - time.time())))
    return place


def measured(name: str, wanted: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Everything of one script, a part at a time."""
    script = Script(name, data_of(name, wanted), wanted.workers)
    yield "data", {"folder": script.data.name, "workers": script.workers}
    yield "identity", identity(script, epochs=min(3, wanted.epochs))
    yield "hits", hits(script, epochs=2)
    yield "pace", compare(script, rounds=wanted.rounds, epochs=wanted.epochs)
    if wanted.tune:
        yield "tune", tuned(script, budget=wanted.budget)


def missing(name: str) -> str:
    """The packages that a script needs and that are not here."""
    return " ".join(package for module, package in PACKAGES[name].items() if importlib.util.find_spec(module) is None)


def print_row(name: str, found: dict[str, Any]) -> None:
    pace, counts = found["pace"], found["hits"]
    told = {what: shown(Estimate(*pace[what])) for what in ("gain", "cpu_gain", "ceiling", "share_of_ceiling")}
    same = "same" if found["identity"]["same"] else "DIFFERENT"
    rate = f"{counts['num_hits']}/{counts['num_hits'] + counts['num_misses']}"
    print(
        f"{name:14}{same:11}{rate:12}{told['gain']:22}{told['cpu_gain']:22}{told['ceiling']:22}"
        f"{told['share_of_ceiling']:22}{pace['first_epoch'][0]:.2f}",
        flush=True,
    )
    if "tune" in found:
        tune = found["tune"]
        speed = tune["speedup"]
        proven = f"{speed['value']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})" if speed else "no speedup"
        plan = " ".join(f"{key}={value}" for key, value in tune["settings"].items()) or "empty"
        print(f"{'':14}tune: {plan}; {proven}, {tune['verdict']}, {tune['guarantee']}, {tune['seconds']:.0f} s")
        if not tune["is_in_plan"]:
            why = [trial["verdict"] for trial in tune["trials_of_cache"]] or tune["skipped"]
            print(f"{'':14}tune: the cache is not in the plan: {why}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--counts-of"]:
        run_and_count(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="a scratch folder")
    parser.add_argument("--photos", type=Path, metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=PACKAGES, default=list(PACKAGES), metavar="NAME")
    parser.add_argument("--samples", type=int, default=1200, help="images of each script's data, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--budget", default="4m", help="of `hasten tune`")
    parser.add_argument("--quick", action="store_true", help="little data, one round, nothing written")
    wanted = parser.parse_args()
    if wanted.epochs < 2:
        parser.error("--epochs: what a cache gains shows in the second epoch")
    if wanted.quick:
        wanted.samples, wanted.rounds, wanted.epochs = min(96, wanted.samples), 1, 3
    report: dict[str, Any] = {"benchmark": "cached_reads", "scripts": {}}
    if RESULTS.exists():
        report["scripts"] = json.loads(RESULTS.read_text(encoding="utf-8"))["scripts"]  # the others stay
    print(f"{'':14}{'':11}{'hits':12}{'gain':22}{'cpu':22}{'ceiling':22}{'share of ceiling':22}first")
    for name in wanted.only:
        if lacking := missing(name):
            print(f"{name:14}skipped: it needs {lacking} (pip install {lacking})", flush=True)
            continue
        machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
        found: dict[str, Any] = {"machine": machine, "started": time.time()}
        try:
            found.update(measured(name, wanted))
        except (RuntimeError, KeyError, subprocess.SubprocessError) as error:
            print(f"{name:14}failed: {error}", flush=True)
            continue
        print_row(name, found)
        report["scripts"][name] = found
        if not wanted.quick:
            RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not wanted.quick:
        brief = {name: {**one, "pace": {**one["pace"], "runs": None}} for name, one in report["scripts"].items()}
        print(json.dumps({**report, "scripts": brief}))


if __name__ == "__main__":
    main()
