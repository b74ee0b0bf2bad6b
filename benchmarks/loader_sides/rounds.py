"""Runs the sides: each in a fresh process, in turn, watched from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loader_sides.catalog import HALF, Side, Workload
from loader_sides.environment import Environment
from loader_sides.job import Job
from loader_sides.process_tree import MemoryWatch
from loader_sides.sources import decoded_bytes

BENCHMARKS = Path(__file__).resolve().parent.parent
LONGEST_SECONDS = 300.0  # a run that takes longer hangs
SEARCH_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all runs share."""

    environments: dict[str, Environment]
    photos: str
    xray: str
    scratch: str
    seconds: float
    num_samples: int | None
    workers: int | None
    """For all sides that do not fix it; None: search."""

    def job(self, workload: Workload, side: Side, *, workers: int) -> Job:
        return Job(
            module=side.module,
            options={key: self.half_bytes() if value == HALF else value for key, value in side.options.items()},
            batch_size=workload.batch_size,
            data=side.data or workload.data,
            transform=workload.transform,
            workers=workers,
            seconds=self.seconds,
            num_samples=self.num_samples,
            photos=self.photos,
            xray=self.xray,
            scratch=self.scratch,
        )

    def half_bytes(self) -> int:
        """Half of what the decoded photographs take."""
        share = 1.0
        if self.num_samples is not None:
            share = min(1.0, self.num_samples / sum(1 for _ in Path(self.photos).rglob("*.jp*g")))
        return int(decoded_bytes(self.photos) * share / 2)


def run(job: Job, python: str) -> dict:
    """One fresh process. What it found, and what was seen from outside; `failed` says what went wrong."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder, "answer.json"), Path(folder, "log.txt")
        command = [python, "-m", "loader_sides.one_run", json.dumps(dataclasses.asdict(job)), str(answer)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=BENCHMARKS, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            watch = MemoryWatch(process.pid)
            ending = wait(process)
            watch.stop()
        if not answer.exists():
            lines = log.read_text(errors="replace").strip().splitlines()
            return {"failed": f"{ending}: {lines[-1] if lines else 'it said nothing'}"}
        found = json.loads(answer.read_text())
    outside = {"peak_bytes": watch.peak_bytes, "watch_cpu_seconds": watch.cpu_seconds, "load": load, "ending": ending}
    return {"workers": job.workers, **found, **outside}


def wait(process: subprocess.Popen) -> str:
    """How it ended. Its whole group is ended with it, so that no worker stays behind to disturb the next run."""
    try:
        ending = f"exit code {process.wait(LONGEST_SECONDS)}"
    except subprocess.TimeoutExpired:
        ending = f"still there after {LONGEST_SECONDS:.0f} seconds"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ending


def compare_pixels(bench: Bench, workload: Workload, side: Side, record: dict) -> None:
    """Largest and mean distance from Pillow's pixels, once, with one worker and in order."""
    if not (workload.images and side.images) or "pixels" in record:
        return
    job = bench.job(workload, side, workers=0 if side.workers == 0 else 1)
    # Random crops cannot be dictated to every side: the whole image to the same size shows decoder and resize alike.
    transform = "squash" if workload.transform == "random_crop" else workload.transform
    job = dataclasses.replace(job, compare_pixels=True, shuffle=False, transform=transform)
    found = attempt(job, bench, side, record)
    if "failed" not in found:
        record["pixels"] = found


def attempt(job: Job, bench: Bench, side: Side, record: dict) -> dict:
    """A run; a failure is noted in the side's record, which ends its part."""
    found = run(job, bench.environments[side.environment].python)
    if "failed" in found:
        record["failed"] = found["failed"]
        print(f"{side.name}: {found['failed']}", file=sys.stderr, flush=True)
    return found


def find_workers(bench: Bench, workload: Workload, side: Side, record: dict) -> None:
    """The number of workers with the highest rate in one short run each."""
    if "workers" in record:
        return
    fixed = next((n for n in (side.workers, workload.workers, bench.workers) if n is not None), None)
    if fixed is not None:
        record["workers"] = fixed
        return
    short = dataclasses.replace(bench, seconds=min(SEARCH_SECONDS, bench.seconds))
    record["search"] = []
    for workers in range(1, 2 * len(os.sched_getaffinity(0)) + 1):
        found = attempt(short.job(workload, side, workers=workers), bench, side, record)
        if "failed" not in found:
            record["search"].append(found)
        elif record["search"]:
            del record["failed"]  # some refuse more workers than cores; fewer will do
            break
        else:
            return
    record["workers"] = max(record["search"], key=lambda found: found["samples"] / found["seconds"])["workers"]


def timed_rounds(
    bench: Bench, workload: Workload, sides: Sequence[Side], result: dict, *, num_rounds: int
) -> Iterator[None]:
    """All sides in turn, the order turned round at every round; pauses after each for whoever saves."""
    for number in range(num_rounds):
        result["load_before_rounds"].append(os.getloadavg())
        for side in sides if number % 2 == 0 else reversed(sides):
            record = result["sides"][side.name]
            if "failed" not in record:
                found = attempt(bench.job(workload, side, workers=record["workers"]), bench, side, record)
                if "failed" not in found:
                    record["runs"].append(found)
        yield
