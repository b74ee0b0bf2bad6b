"""check and diagnose: the verbs that measure and change nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import (
    WHAT_TO_RUN,
    add_command,
    add_measuring,
    add_verb,
    command_of,
    console,
    print_json,
)
from hasten.measurement.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Verbs


# ------------------------------------------------------------------------------------------------------ check


def add_check(verbs: Verbs) -> None:
    """`hasten check`."""
    verb = add_verb(verbs, "check", "Look at this machine: what is good, what to change.", _check)
    verb.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="where the data lies, for the disk's rates"
    )


def _check(wanted: argparse.Namespace) -> int:
    from hasten.diagnosis.check import check
    from hasten.machine.disk import measure_disk
    from hasten.machine.machine import read_machine
    from hasten.reports.progress import progress
    from hasten.reports.text import print_check

    with progress(console(stderr=True), quiet=wanted.json) as bar:
        bar.update("asking torch what it can use")
        machine = read_machine(ask_torch=True)
        bar.update(f"reading the disk under {wanted.folder}")
        disk = measure_disk(str(wanted.folder))
    lines = check(machine, disk=disk)
    if wanted.json:
        print_json({"machine": machine, "disk": disk, "lines": lines})
    else:
        print_check(lines, console=console())
    return 0


# --------------------------------------------------------------------------------------------------- diagnose


def add_diagnose(verbs: Verbs) -> None:
    """`hasten diagnose`."""
    usage = f"hasten diagnose [options] {WHAT_TO_RUN}"
    says = "Measure a training script as it is, and say where its time goes. Changes nothing."
    verb = add_verb(verbs, "diagnose", says, _diagnose, usage=usage)
    add_measuring(verb, seconds=60.0)
    add_command(verb)


def _diagnose(wanted: argparse.Namespace) -> int:
    from hasten.diagnosis.diagnose import diagnose
    from hasten.measurement.measure import FIRST_LAUNCH, Wanted, measure
    from hasten.reports.progress import progress
    from hasten.reports.text import print_diagnosis

    with progress(console(stderr=True), quiet=wanted.json) as bar:
        run, folder = measure(
            command_of(wanted),
            module=wanted.module,
            root=RESULTS,
            wanted=Wanted(
                steps=wanted.steps,
                seconds=wanted.seconds,
                patience=wanted.wait,
                quick=wanted.quick,
                # The script's own words must not mix with the JSON.
                script_output=sys.stderr.fileno() if wanted.json else None,
            ),
            # A line drawn while the script runs for the first time would be drawn over what it prints.
            on_progress=lambda what, done, of: (
                bar.update(what, done, of) if what != FIRST_LAUNCH or not bar.takes_over else None
            ),
        )
    diagnosis = diagnose(run)
    if wanted.json:
        print_json({"run": run, "diagnosis": diagnosis})
    else:
        print_diagnosis(run, diagnosis, console=console(), record=str(folder / "run.json"))
    return 0
