"""speedtest: diagnose and tune bundled workloads."""

from __future__ import annotations

import argparse
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import (
    add_measuring,
    add_subcommand,
    add_verbose,
    console,
    more,
    positive,
    print_json,
    time_span,
)
from hasten.errors import CommandError
from hasten.folders import OWN_SCRIPT
from hasten.launch.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Subparsers
    from hasten.records import Run, Tuning
    from hasten.reports.progress import ProgressReport
    from hasten.tuning.metric import Metric
    from hasten.workloads.catalog import Workload

EVERY = "all"
SHORT, BUDGET = 55.0, 240.0  # seconds for one workload, without and with --full


def add_speedtest(subparsers: Subparsers) -> None:
    """Add `hasten speedtest`."""
    description = "Diagnose and tune a bundled training script, on generated images, and show the speedup."
    examples = {
        "hasten speedtest": "",
        "hasten speedtest --data /data/xrays": "on your own images",
        "hasten speedtest --list": "the bundled scripts",
    }
    parser = add_subcommand(subparsers, "speedtest", description, _speedtest, examples=examples)
    add_measuring(parser, seconds=15.0)
    add_verbose(parser)
    parser.add_argument("workload", nargs="?", default="superres", help="workload name, or `all` [default: superres]")
    parser.add_argument("--data", type=Path, metavar="DIR", help="train on the images in this folder instead")
    parser.add_argument("--images", type=positive, metavar="N", help="images per epoch")
    parser.add_argument(
        "--budget",
        type=time_span,
        metavar="TIME",
        help="time for each workload [default: about 90 s in all; with --full 4m; with `all` 5m to 10m]",
    )
    parser.add_argument("--full", action="store_true", help="search for 4 minutes, and check the quality of training")
    parser.add_argument("--no-tune", action="store_true", help="diagnose only, in two minutes")
    parser.add_argument("--list", action="store_true", help="list the bundled workloads")


@dataclass(frozen=True, kw_only=True)
class _Tested:
    """The results of one workload; `tuning` is None if it was only diagnosed."""

    workload: Workload
    run: Run
    folder: Path  # of the run
    num_images: int
    num_labels: int
    tuning: Tuning | None


def _speedtest(args: argparse.Namespace) -> int:
    from hasten.reports.progress import progress
    from hasten.reports.text import print_before_and_after

    if args.list:
        _list_workloads()
        return 0
    workloads = _chosen(args)
    tested: list[_Tested] = []
    for workload in workloads:
        seconds = None if args.quick or args.no_tune else _budget(args, workload)
        with progress(console(stderr=True), quiet=args.json, expected=seconds) as bar:
            tested.append(_tested(args, workload, bar))
        if not args.json:
            _print(tested[-1], verbose=args.verbose)
    if args.json:
        _print_json(tested, one=args.workload != EVERY)
    elif len(tested) > 1:
        print_before_and_after(
            [(t.workload.name, t.tuning) for t in tested if t.tuning is not None], console=console()
        )
    return 0


def _list_workloads() -> None:
    from hasten.workloads.catalog import WORKLOADS

    for workload in WORKLOADS.values():
        print(f"{workload.name:10s} {workload.title}")


def _chosen(args: argparse.Namespace) -> list[Workload]:
    from hasten.workloads.catalog import WORKLOADS

    if args.workload == EVERY:
        if args.data is not None:
            raise CommandError("--data needs a single workload, because each uses different images; pass its name")
        return list(WORKLOADS.values())
    if args.workload not in WORKLOADS:
        raise CommandError(f"no such workload: {args.workload}; choose from {', '.join(WORKLOADS)} or {EVERY}")
    return [WORKLOADS[args.workload]]


def _tested(args: argparse.Namespace, workload: Workload, bar: ProgressReport) -> _Tested:
    data, num_images, num_labels = _prepare(args, workload, bar)
    argv = [str(workload.script), *workload.arguments(data, num_images=num_images)]
    tuning = None
    if args.quick or args.no_tune:
        run, folder = _measured(args, argv, bar)
    else:
        tuning = _tuned(args, workload, argv, _metric(workload, data, num_images), bar)
        run, folder = _first_run(tuning)
    return _Tested(
        workload=workload, run=run, folder=folder, num_images=num_images, num_labels=num_labels, tuning=tuning
    )


def _prepare(args: argparse.Namespace, workload: Workload, bar: ProgressReport) -> tuple[Path, int, int]:
    """The data folder, the number of images per epoch, and the number of labels."""
    from hasten.machine.machine import read_machine
    from hasten.workloads.catalog import describe_data

    on_gpu = bool(read_machine().devices)
    number = args.images or (workload.num_images_on_gpu if on_gpu else workload.num_images)
    data = args.data
    if data is None:
        data = workload.prepare(num_images=number, on_progress=lambda d, n: bar.update("making images", d, n))
    return data, *describe_data(workload, data, num_images=number)


def _metric(workload: Workload, data: Path, num_images: int) -> Metric | None:
    from hasten.launch.launch import command_argv
    from hasten.tuning.metric import Metric

    if not workload.metric or workload.num_epochs is None:
        return None
    whole = workload.arguments(data, num_images=num_images, num_epochs=workload.num_epochs)
    command = command_argv([str(workload.script), *whole], module=False)
    return Metric(re.compile(workload.metric), target=workload.target, command=command)


def _measured(args: argparse.Namespace, argv: list[str], bar: ProgressReport) -> tuple[Run, Path]:
    from hasten.measurement.measure import MeasureOptions, measure

    with tempfile.TemporaryFile() as output:
        options = MeasureOptions(
            steps=args.steps,
            seconds=args.seconds,
            patience=args.wait,
            quick=args.quick,
            begun_within=4 * args.seconds,
            script_output=output.fileno(),
        )
        return measure(argv, options=options, root=RESULTS, on_progress=bar.update)


def _tuned(
    args: argparse.Namespace, workload: Workload, argv: list[str], metric: Metric | None, bar: ProgressReport
) -> Tuning:
    from hasten.tuning.budget import Budget
    from hasten.tuning.tune import tune

    seconds = _budget(args, workload)
    budget = Budget(
        seconds=seconds,
        patience=args.wait,
        longest_diagnosis=args.seconds,
        metric=metric,
        recipes=workload.target is not None,
        num_epochs=workload.num_epochs,
        checks_quality=not _is_short(args),
    )
    return tune(argv, budget=budget, root=RESULTS, on_progress=bar.update, on_result=bar.say)


def _budget(args: argparse.Namespace, workload: Workload) -> float:
    usual = workload.seconds_of_all if args.workload == EVERY else BUDGET
    return args.budget or (SHORT if _is_short(args) else usual)


def _is_short(args: argparse.Namespace) -> bool:
    """Whether only what helps most is shown, without the quality check."""
    return args.budget is None and not args.full and args.workload != EVERY


def _first_run(tuning: Tuning) -> tuple[Run, Path]:
    from hasten.records import Run, from_json

    folder = RESULTS / "runs" / tuning.runs[0]
    return from_json(Run, (folder / "run.json").read_bytes(), source=str(folder)), folder


def _print(tested: _Tested, *, verbose: bool) -> None:
    from hasten.measurement.diagnose import diagnose
    from hasten.reports.text import print_diagnosis, print_workload
    from hasten.reports.tuning import print_tuning

    diagnosis = diagnose(tested.run)
    print_workload(
        tested.run,
        diagnosis,
        name=tested.workload.name,
        num_images=tested.num_images,
        num_labels=tested.num_labels,
        console=console(),
    )
    if tested.tuning is not None:
        record = str(RESULTS / "tunings" / tested.tuning.id / "tuning.json")
        print(f"Before: {diagnosis.verdict}\n")
        print_tuning(
            tested.tuning,
            console=console(),
            record=record,
            verbose=verbose,
            next=OWN_SCRIPT,
            details=more(tested.tuning.id, verbose=verbose),
        )
    if tested.tuning is None or verbose:
        print()
        record = str(tested.folder / "run.json")
        print_diagnosis(
            tested.run,
            diagnosis,
            console=console(),
            record=record,
            verbose=verbose,
            next=OWN_SCRIPT,
            details="" if tested.tuning is not None else more(tested.folder.name, verbose=verbose),
        )
    print()


def _print_json(tested: list[_Tested], *, one: bool) -> None:
    from hasten.measurement.diagnose import diagnose

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
