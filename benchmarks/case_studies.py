"""The five case studies on real images: what each write-up claims, measured.

    python benchmarks/case_studies.py DATA [--only tuned waiting held disk feeding limit searched] [--names NAME ...] [--budget 420s]

DATA holds photos/ and tiny/ (class folders), xray/ (X-ray images and labels.csv) and sr/ (photographs of any kind).

tuned   `hasten speedtest NAME --data DIR` for each case study, its whole record
waiting the same for feed on one thread, so that the other cores are the loader's: the data wait that its plan leaves
held    superres: how fast its input is in the second epoch, by the share of the samples that the cache may hold, against
        the first and against epochs without a cache; 1 / (1 - 0.95 x share) is asked for
disk    the same with a third of the samples in memory and the rest on the disk, against none of them
searched `hasten tune` of superres in a control group in which memory holds a third of its samples
limit   superres in a control group with less memory than the samples take: with hasten's cache, and with the script's own
        dictionary; memory in every second of both, or how it died
feeding feed's photographs through the loader alone, nothing kept, against as many processes as there are cores that do
        nothing but make samples: the ceiling of any loader

Prints tables and one JSON line; everything that was measured goes to benchmarks/results/case_studies/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from case_study_common import FOLDERS, hasten, scratch, shown
from case_study_loader import disk, feeding, held
from case_study_memory import limit, searched

from hasten.cli.saved import nearest_run
from hasten.measurement.diagnose import diagnose, situation_of
from hasten.measurement.measure import MeasureOptions, measure
from hasten.optimizations.catalog import variables_of
from hasten.records import Run, Tuning, to_json
from hasten.stats import Estimate
from hasten.tuning.trial_config import base_spec, config_for

RESULTS = Path(__file__).resolve().parent / "results" / "case_studies"


def tuned(data: Path, wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in wanted.names:
        yield name, speedtest(name, data, wanted, environment=None)


def speedtest(
    name: str, data: Path, wanted: argparse.Namespace, *, environment: dict[str, str] | None
) -> dict[str, Any]:
    """All that `hasten speedtest` reports of a case study, and the run under its plan; or its error."""
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
    """The diagnosed run under the whole plan: the search's own, or where it had no time for that, another."""
    tuning = msgspec.convert(found["tuning"], Tuning) if found.get("tuning") else None
    if tuning is None or not tuning.settings:
        return None
    near, under = nearest_run(tuning)
    if near is not None and under == tuning.settings:
        return json.loads((folder / ".hasten" / "runs" / near / "run.json").read_text(encoding="utf-8"))
    first = situation_of(msgspec.convert(found["run"], Run), {})
    config = config_for(first, tuning.settings)
    with (folder / "output.txt").open("wb") as output:
        wanted = MeasureOptions(
            seconds=15.0,
            quick=True,
            script_output=output.fileno(),
            spec=base_spec(tuning.settings, config),
            environment=variables_of(tuning.settings, scratch=folder),
        )
        run, _ = measure(list(tuning.command), options=wanted, root=folder)
    return json.loads(to_json(run))


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
    breakdown = diagnose(run).breakdown
    return (breakdown.phases["data_wait"] or 0.0) / breakdown.step_seconds


def brief(name: str, result: dict[str, Any]) -> None:
    """One line of a tuned case study."""
    tuning = result.get("tuning") or {}
    proof = tuning.get("proof") or {}
    speed = proof.get("target_speedup") or proof.get("speedup")
    told = shown(Estimate(speed["value"], speed["low"], speed["high"])) if speed else "no speedup"
    print(
        f"{name}: {told}, {proof.get('verdict', 'no proof')}, {result.get('seconds', 0):.0f} s, {tuning.get('settings')}",
        flush=True,
    )


QUESTIONS = {
    "tuned": tuned,
    "waiting": waiting,
    "held": held,
    "disk": disk,
    "feeding": feeding,
    "limit": limit,
    "searched": searched,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--names", nargs="+", choices=FOLDERS, default=list(FOLDERS), metavar="NAME")
    parser.add_argument("--budget", help="of each search")
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
    print(json.dumps({"benchmark": "case_studies", "written": written}))


if __name__ == "__main__":
    main()
