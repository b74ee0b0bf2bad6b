"""The commands that measure and change nothing: check and diagnose."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hasten.cli.parts import (
    WHAT_TO_RUN,
    add_command,
    add_measuring,
    add_subcommand,
    add_verbose,
    command_of,
    console,
    hasten_line,
    more,
    print_error,
    print_json,
)
from hasten.launch.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Subparsers

# ------------------------------------------------------------------------------------------------------ check


def add_check(subparsers: Subparsers) -> None:
    """Add `hasten check`."""
    parser = add_subcommand(
        subparsers,
        "check",
        "Check this machine: what is good, what to change.",
        _check,
        examples={
            "hasten check": "",
            "hasten check /data/imagenet": "the disk of this folder, or the network mount",
            "hasten check s3://bucket/imagenet": "what 1, 4 and 16 readers get from there",
        },
    )
    parser.add_argument(
        "place",
        metavar="PATH",
        nargs="?",
        default=".",
        help="folder or URL of the data, to measure reads [default: .]",
    )


def _check(args: argparse.Namespace) -> int:
    from hasten.diagnosis.check import check
    from hasten.machine.disk import measure_disk
    from hasten.machine.machine import read_machine
    from hasten.machine.reads import is_url, measure_mount, measure_url
    from hasten.reports.progress import progress
    from hasten.reports.text import print_check

    with progress(console(stderr=True), quiet=args.json) as bar:
        bar.update(f"measuring reads from {args.place}")
        disk = None if is_url(args.place) else measure_disk(args.place)
        if disk is None:
            reads = measure_url(args.place)
        else:
            reads = measure_mount(args.place) if disk.kind == "network" else None
        bar.update("checking PyTorch")
        machine = read_machine(ask_torch=True)
    lines = check(machine, disk=disk, reads=reads)
    if args.json:
        print_json({"machine": machine, "disk": disk, "reads": reads, "lines": lines})
    else:
        print_check(lines, console=console(), reads=reads)
    return 0


# --------------------------------------------------------------------------------------------------- diagnose


def add_diagnose(subparsers: Subparsers) -> None:
    """Add `hasten diagnose`."""
    usage = f"hasten diagnose [options] {WHAT_TO_RUN}"
    description = "Measure an unmodified training script and show where its time goes. Changes nothing."
    examples = {
        "hasten diagnose train.py --epochs 3": "",
        "hasten diagnose --quick train.py": "one run of 20 seconds: causes are estimated",
        "hasten diagnose -m package.train": "a module, as in python -m",
        "hasten diagnose torchrun --nproc-per-node 2 train.py": "any command",
    }
    parser = add_subcommand(subparsers, "diagnose", description, _diagnose, usage=usage, examples=examples)
    add_measuring(parser, seconds=20.0)
    add_verbose(parser)
    add_command(parser)


def _diagnose(args: argparse.Namespace) -> int:
    from hasten.measurement.diagnose import diagnose
    from hasten.measurement.measure import BEGUN_WITHIN, BEGUN_WITHIN_IF_SLOW, FIRST_LAUNCH, MeasureOptions, measure
    from hasten.reports.progress import progress
    from hasten.reports.text import print_diagnosis

    stopped: list[KeyboardInterrupt] = []
    with progress(console(stderr=True), quiet=args.json) as bar:
        if bar.takes_over:
            bar.say(
                "measuring the script, with its own output; it is started again later, silently, to confirm causes"
            )
        run, folder = measure(
            command_of(args),
            module=args.module,
            root=RESULTS,
            options=MeasureOptions(
                steps=args.steps,
                seconds=args.seconds,
                patience=args.wait,
                quick=args.quick,
                begun_within=BEGUN_WITHIN,
                begun_within_if_slow=BEGUN_WITHIN_IF_SLOW,
                on_stopped=stopped.append,
                # The script's output must not mix with the JSON.
                script_output=sys.stderr.fileno() if args.json else None,
            ),
            # A line drawn during the first launch would overwrite the script's output.
            on_progress=lambda what, done, of: (
                bar.update(what, done, of) if what != FIRST_LAUNCH or not bar.takes_over else None
            ),
        )
    diagnosis = diagnose(run)
    if args.json:
        print_json({"run": run, "diagnosis": diagnosis})
    else:
        print_diagnosis(
            run,
            diagnosis,
            console=console(),
            record=str(folder / "run.json"),
            verbose=args.verbose,
            next=hasten_line("tune", run.command),
            details=more(verbose=args.verbose),
        )
    if stopped:
        stopped[0].args = ("interrupted before all causes were tried; what is known is above",)
        raise stopped[0]
    if not (folder / "run.json").is_file():
        print_error(run.notes[-1])
        return 2
    return run.exit_code or 0  # of a script that failed after its steps were measured
