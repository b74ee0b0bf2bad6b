"""speedtest: all of it on bundled workloads."""

from __future__ import annotations

import argparse
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import add_measuring, add_verb, console, positive, print_json, time_span
from hasten.errors import CommandError
from hasten.measurement.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Verbs
    from hasten.records import Run, Tuning
    from hasten.reports.progress import ProgressReport
    from hasten.tuning.metric import Metric
    from hasten.workloads.catalog import Workload

EVERY = "all"
BUDGET = 240.0  # seconds for one workload


def add_speedtest(verbs: Verbs) -> None:
    """`hasten speedtest`."""
    says = "Diagnose a bundled training script, tune it, and say what that gains; on images it makes itself."
    verb = add_verb(verbs, "speedtest", says, _speedtest)
    add_measuring(verb, seconds=15.0)
    verb.add_argument("workload", nargs="?", default="xray", help="which one (xray), or `all` of them")
    verb.add_argument("--data", type=Path, metavar="DIR", help="train on the images in this folder instead")
    verb.add_argument("--images", type=positive, metavar="N", help="how many images an epoch takes")
    verb.add_argument("--budget", type=time_span, metavar="TIME", help="for each (4m; of `all`, 5m to 10m)")
    verb.add_argument("--no-tune", action="store_true", help="the diagnosis alone, in two minutes")
    verb.add_argument("--list", action="store_true", help="name the bundled workloads")


@dataclass(frozen=True, kw_only=True)
class _Tested:
    """One workload, measured and perhaps tuned."""

    workload: Workload
    run: Run
    folder: Path  # of the run
    num_images: int
    num_labels: int
    tuning: Tuning | None


def _speedtest(wanted: argparse.Namespace) -> int:
    from hasten.reports.progress import progress
    from hasten.reports.speedtest import print_before_and_after

    if wanted.list:
        _list_workloads()
        return 0
    workloads = _chosen(wanted)
    tested: list[_Tested] = []
    for workload in workloads:
        seconds = None if wanted.quick or wanted.no_tune else _budget(wanted, workload)
        with progress(console(stderr=True), quiet=wanted.json, expected=seconds) as bar:
            tested.append(_tested(wanted, workload, bar))
        if not wanted.json:
            _print(tested[-1])
    if wanted.json:
        _print_json(tested, one=wanted.workload != EVERY)
    elif len(tested) > 1:
        print_before_and_after(
            [(t.workload.name, t.tuning) for t in tested if t.tuning is not None], console=console()
        )
    return 0


def _list_workloads() -> None:
    from hasten.workloads.catalog import WORKLOADS

    for workload in WORKLOADS.values():
        print(f"{workload.name:10s} {workload.title}")


def _chosen(wanted: argparse.Namespace) -> list[Workload]:
    from hasten.workloads.catalog import WORKLOADS

    if wanted.workload == EVERY:
        if wanted.data is not None:
            raise CommandError("--data is for one workload; name it, for they take images of different kinds")
        return list(WORKLOADS.values())
    if wanted.workload not in WORKLOADS:
        raise CommandError(f"no such workload: {wanted.workload}; there is {', '.join(WORKLOADS)}, or {EVERY}")
    return [WORKLOADS[wanted.workload]]


def _tested(wanted: argparse.Namespace, workload: Workload, bar: ProgressReport) -> _Tested:
    data, num_images, num_labels = _prepare(wanted, workload, bar)
    words = [str(workload.script), *workload.arguments(data, num_images=num_images)]
    tuning = None
    if wanted.quick or wanted.no_tune:
        run, folder = _measured(wanted, words, bar)
    else:
        tuning = _tuned(wanted, workload, words, _metric(workload, data, num_images), bar)
        run, folder = _first_run(tuning)
    return _Tested(
        workload=workload, run=run, folder=folder, num_images=num_images, num_labels=num_labels, tuning=tuning
    )


def _prepare(wanted: argparse.Namespace, workload: Workload, bar: ProgressReport) -> tuple[Path, int, int]:
    """The data folder, its images (as many as an epoch takes) and its labels."""
    from hasten.machine.machine import read_machine
    from hasten.workloads.catalog import describe_data

    on_gpu = bool(read_machine().devices)
    number = wanted.images or (workload.num_images_on_gpu if on_gpu else workload.num_images)
    if wanted.data is not None:
        found, num_labels = describe_data(workload, wanted.data, num_images=number)
        return wanted.data, min(found, number), num_labels
    data = workload.prepare(num_images=number, on_progress=lambda d, n: bar.update("making images", d, n))
    return data, number, describe_data(workload, data, num_images=number)[1]


def _metric(workload: Workload, data: Path, num_images: int) -> Metric | None:
    from hasten.measurement.launch import command_words
    from hasten.tuning.metric import Metric

    if not workload.metric or workload.num_epochs is None:
        return None
    whole = workload.arguments(data, num_images=num_images, num_epochs=workload.num_epochs)
    command = command_words([str(workload.script), *whole], module=False)
    return Metric(re.compile(workload.metric), target=workload.target, command=command)


def _measured(wanted: argparse.Namespace, words: list[str], bar: ProgressReport) -> tuple[Run, Path]:
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


def _tuned(
    wanted: argparse.Namespace, workload: Workload, words: list[str], metric: Metric | None, bar: ProgressReport
) -> Tuning:
    from hasten.tuning.tune import Budget, tune

    seconds = _budget(wanted, workload)
    budget = Budget(
        seconds=seconds,
        patience=wanted.wait,
        diagnose_seconds=min(wanted.seconds, seconds / 20),
        metric=metric,
        recipes=workload.target is not None,
        num_epochs=workload.num_epochs,
    )
    return tune(words, budget=budget, root=RESULTS, on_progress=bar.update, on_result=bar.say)


def _budget(wanted: argparse.Namespace, workload: Workload) -> float:
    return wanted.budget or (workload.seconds_of_all if wanted.workload == EVERY else BUDGET)


def _first_run(tuning: Tuning) -> tuple[Run, Path]:
    from hasten.records import Run, from_json

    folder = RESULTS / "runs" / tuning.runs[0]
    return from_json(Run, (folder / "run.json").read_bytes(), source=str(folder)), folder


def _print(tested: _Tested) -> None:
    from hasten.diagnosis.diagnose import diagnose
    from hasten.reports.text import print_speedtest
    from hasten.reports.tuning import print_tuning

    print_speedtest(
        tested.run,
        diagnose(tested.run),
        workload=tested.workload.name,
        num_images=tested.num_images,
        num_labels=tested.num_labels,
        console=console(),
        record=str(tested.folder / "run.json"),
        before_tuning=tested.tuning is not None,
    )
    if tested.tuning is not None:
        print()
        record = str(RESULTS / "tunings" / tested.tuning.id / "tuning.json")
        print_tuning(tested.tuning, console=console(), record=record)
    print()


def _print_json(tested: list[_Tested], *, one: bool) -> None:
    from hasten.diagnosis.diagnose import diagnose

    found = [
        {
            "workload": t.workload.name,
            "run": t.run,
            "diagnosis": diagnose(t.run),
            "num_images": t.num_images,
            "num_labels": t.num_labels,
            "tuning": t.tuning,
        }
        for t in tested
    ]
    print_json(found[0] if one else found)
