"""speedtest: all of it on a bundled workload."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import add_measuring, add_verb, console, positive, print_json, time_span
from hasten.errors import CommandError
from hasten.measurement.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Verbs
    from hasten.records import Run, Tuning
    from hasten.reports.progress import ProgressLine

BUDGET = 1200.0  # seconds; a machine without a GPU takes most of them


def add_speedtest(verbs: Verbs) -> None:
    """`hasten speedtest`."""
    says = "Diagnose a bundled training script, tune it, and say what that gains; on images it makes itself."
    verb = add_verb(verbs, "speedtest", says, _speedtest)
    add_measuring(verb, seconds=20.0)
    verb.add_argument("workload", nargs="?", default="xray", help="which one (xray)")
    verb.add_argument("--data", type=Path, metavar="DIR", help="train on the images in this folder instead")
    verb.add_argument("--images", type=positive, metavar="N", help="how many images an epoch takes")
    verb.add_argument("--budget", type=time_span, default=BUDGET, metavar="TIME", help="for everything (20m)")
    verb.add_argument("--no-tune", action="store_true", help="the diagnosis alone, in two minutes")
    verb.add_argument("--list", action="store_true", help="name the bundled workloads")


def _speedtest(wanted: argparse.Namespace) -> int:
    from hasten.diagnosis.diagnose import diagnose
    from hasten.reports.progress import progress
    from hasten.reports.text import print_speedtest
    from hasten.reports.tuning import print_tuning

    if wanted.list:
        _list_workloads()
        return 0
    with progress(console(stderr=True), quiet=wanted.json) as bar:
        data, num_images, num_labels = _prepare(wanted, bar)
        words = _words(wanted, data, num_images)
        tuning = None
        if wanted.quick or wanted.no_tune:
            run, folder = _measured(wanted, words, bar)
        else:
            tuning = _tuned(wanted, words, bar)
            run, folder = _first_run(tuning)
    diagnosis = diagnose(run)
    if wanted.json:
        found = {"run": run, "diagnosis": diagnosis, "num_images": num_images, "num_labels": num_labels}
        print_json({**found, "tuning": tuning})
        return 0
    record = str(folder / "run.json")
    print_speedtest(run, diagnosis, num_images=num_images, num_labels=num_labels, console=console(), record=record)
    if tuning is not None:
        print()
        print_tuning(tuning, console=console(), record=str(RESULTS / "tunings" / tuning.id / "tuning.json"))
    return 0


def _list_workloads() -> None:
    from hasten.workloads.catalog import WORKLOADS

    for workload in WORKLOADS.values():
        print(f"{workload.name:10s} {workload.title}")


def _prepare(wanted: argparse.Namespace, bar: ProgressLine) -> tuple[Path, int, int]:
    """The data folder, its images (as many as an epoch takes) and its labels."""
    from hasten.measurement.system.machine import read_machine
    from hasten.workloads.catalog import WORKLOADS, describe_data

    workload = WORKLOADS.get(wanted.workload)
    if workload is None:
        raise CommandError(f"no such workload: {wanted.workload}; there is {', '.join(WORKLOADS)}")
    on_gpu = bool(read_machine().devices)
    number = wanted.images or (workload.num_images_on_gpu if on_gpu else workload.num_images)
    if wanted.data is not None:
        found, num_labels = describe_data(wanted.data, num_images=number)
        return wanted.data, min(found, number), num_labels
    data = workload.prepare(num_images=number, on_progress=lambda d, n: bar.update("making films", d, n))
    return data, number, describe_data(data, num_images=number)[1]


def _words(wanted: argparse.Namespace, data: Path, num_images: int) -> list[str]:
    from hasten.workloads.catalog import WORKLOADS

    workload = WORKLOADS[wanted.workload]
    return [str(workload.script), *workload.arguments(data, num_images=num_images)]


def _measured(wanted: argparse.Namespace, words: list[str], bar: ProgressLine) -> tuple[Run, Path]:
    from hasten.measurement.measure import Wanted, measure

    with tempfile.TemporaryFile() as output:
        settings = Wanted(
            steps=wanted.steps,
            seconds=wanted.seconds,
            patience=wanted.wait,
            quick=wanted.quick,
            begun_within=4 * wanted.seconds,
            script_output=output.fileno(),
        )
        return measure(words, wanted=settings, root=RESULTS, on_progress=bar.update)


def _tuned(wanted: argparse.Namespace, words: list[str], bar: ProgressLine) -> Tuning:
    from hasten.tuning.tune import Budget, tune

    budget = Budget(seconds=wanted.budget, patience=wanted.wait, diagnose_seconds=wanted.seconds)
    return tune(words, budget=budget, root=RESULTS, on_progress=bar.update)


def _first_run(tuning: Tuning) -> tuple[Run, Path]:
    from hasten.records import Run, from_json

    folder = RESULTS / "runs" / tuning.runs[0]
    return from_json(Run, (folder / "run.json").read_bytes(), source=str(folder)), folder
