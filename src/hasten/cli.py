"""The verbs. Each reads its words, calls one room and prints.

Argparse rather than typer: everything after the script's name belongs to the script, which `nargs=REMAINDER` says in
one word, and nothing has to be installed or imported for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hasten import __version__
from hasten.errors import CommandError, HastenError, RecordError, ScriptError

if TYPE_CHECKING:
    from rich.console import Console

    from hasten.records import Run
    from hasten.reports.progress import ProgressLine

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # pyright: ignore[reportPrivateUsage]

RESULTS = Path(".hasten")


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code."""
    parser = _parser()
    wanted = parser.parse_args(words)
    try:
        return int(wanted.run(wanted) or 0)
    except ScriptError as error:
        print(f"hasten: {error}", file=sys.stderr)
        return error.exit_code if error.exit_code > 0 else 128 - error.exit_code
    except HastenError as error:
        print(f"hasten: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hasten: interrupted; nothing is left running", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain again while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hasten",
        description="Finds out where a PyTorch training script spends its time, and what would make it faster.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hasten {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_check(verbs)
    _add_diagnose(verbs)
    _add_report(verbs)
    _add_speedtest(verbs)
    return parser


def _verb(verbs: Verbs, name: str, says: str, run: object, *, usage: str | None = None) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=says, description=says, allow_abbrev=False, usage=usage)
    verb.set_defaults(run=run)
    verb.add_argument("--json", action="store_true", help="print the whole record as JSON")
    return verb


def _measuring(verb: argparse.ArgumentParser, *, seconds: float) -> None:
    verb.add_argument("--steps", type=_positive, metavar="N", help="measure N steps (default: until steady)")
    verb.add_argument(
        "--seconds", type=_seconds, default=seconds, metavar="S", help=f"measure at most S seconds ({seconds:g})"
    )
    verb.add_argument("--wait", type=_seconds, default=60.0, metavar="S", help="wait S seconds for a step (60)")
    verb.add_argument("--quick", action="store_true", help="one run only: causes are inferred, not confirmed")


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


# ------------------------------------------------------------------------------------------------------ check


def _add_check(verbs: Verbs) -> None:
    verb = _verb(verbs, "check", "Look at this machine: what is good, what to change.", _check)
    verb.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="where the data lies, for the disk's rates"
    )


def _check(wanted: argparse.Namespace) -> int:
    from hasten.diagnosis.check import check
    from hasten.measurement.system.disk import measure_disk
    from hasten.measurement.system.machine import read_machine
    from hasten.reports.progress import progress
    from hasten.reports.text import print_check

    with progress(_console(stderr=True), quiet=wanted.json) as bar:
        bar.update("asking torch what it can use")
        machine = read_machine(ask_torch=True)
        bar.update(f"reading the disk under {wanted.folder}")
        disk = measure_disk(str(wanted.folder))
    lines = check(machine, disk=disk)
    if wanted.json:
        _print_json({"machine": machine, "disk": disk, "lines": lines})
    else:
        print_check(lines, console=_console())
    return 0


# --------------------------------------------------------------------------------------------------- diagnose


def _add_diagnose(verbs: Verbs) -> None:
    usage = "hasten diagnose [options] (SCRIPT.py | -m MODULE | COMMAND) [its arguments ...]"
    says = "Measure a training script as it is, and say where its time goes. Changes nothing."
    verb = _verb(verbs, "diagnose", says, _diagnose, usage=usage)
    _measuring(verb, seconds=60.0)
    verb.add_argument("-m", dest="module", action="store_true", help="the next word is a module, as in python -m")
    verb.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")


def _diagnose(wanted: argparse.Namespace) -> int:
    from hasten.diagnosis.diagnose import diagnose
    from hasten.measurement.measure import Wanted, measure
    from hasten.reports.progress import progress
    from hasten.reports.text import print_diagnosis

    with progress(_console(stderr=True), quiet=wanted.json) as bar:
        run, folder = measure(
            wanted.words,
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
            on_progress=lambda what, done, of: bar.update(what, done, of) if what != "measure" else None,
        )
    diagnosis = diagnose(run)
    if wanted.json:
        _print_json({"run": run, "diagnosis": diagnosis})
    else:
        print_diagnosis(run, diagnosis, console=_console(), record=str(folder / "run.json"))
    return 0


# ----------------------------------------------------------------------------------------------------- report


def _add_report(verbs: Verbs) -> None:
    verb = _verb(verbs, "report", "Show an earlier run again, without running anything.", _report)
    verb.add_argument("saved", nargs="?", metavar="RUN", help="a run's id, folder or run.json (default: the last)")


def _report(wanted: argparse.Namespace) -> int:
    from hasten.diagnosis.diagnose import diagnose
    from hasten.records import Run, from_json
    from hasten.reports.text import print_diagnosis

    path = _find_run(wanted.saved)
    run = from_json(Run, path.read_bytes(), source=str(path))
    if not run.steps:
        raise RecordError(f"{path} holds no steps; measure again")
    diagnosis = diagnose(run)
    if wanted.json:
        _print_json({"run": run, "diagnosis": diagnosis})
    else:
        print_diagnosis(run, diagnosis, console=_console(), record=str(path))
    return 0


def _find_run(saved: str | None) -> Path:
    if saved is None:
        runs = sorted((RESULTS / "runs").glob("*/run.json"))
        if not runs:
            raise RecordError("no run is kept here; `hasten diagnose SCRIPT` makes one")
        return runs[-1]
    for path in (Path(saved), Path(saved) / "run.json", RESULTS / "runs" / saved / "run.json"):
        if path.is_file():
            return path
    raise RecordError(f"no such run: {saved}; `ls {RESULTS / 'runs'}` shows those kept here")


# -------------------------------------------------------------------------------------------------- speedtest


def _add_speedtest(verbs: Verbs) -> None:
    verb = _verb(verbs, "speedtest", "Diagnose a bundled training script, on images it makes itself.", _speedtest)
    _measuring(verb, seconds=20.0)
    verb.add_argument("workload", nargs="?", default="xray", help="which one (xray)")
    verb.add_argument("--data", type=Path, metavar="DIR", help="train on the images in this folder instead")
    verb.add_argument("--images", type=_positive, metavar="N", help="how many images an epoch takes")
    verb.add_argument("--list", action="store_true", help="name the bundled workloads")


def _speedtest(wanted: argparse.Namespace) -> int:
    from hasten.diagnosis.diagnose import diagnose
    from hasten.reports.progress import progress
    from hasten.reports.text import print_speedtest

    if wanted.list:
        _list_workloads()
        return 0
    with progress(_console(stderr=True), quiet=wanted.json) as bar:
        data, num_images, num_labels = _prepare(wanted, bar)
        run, folder = _measure_workload(wanted, data, num_images, bar)
    diagnosis = diagnose(run)
    if wanted.json:
        _print_json({"run": run, "diagnosis": diagnosis, "num_images": num_images, "num_labels": num_labels})
        return 0
    record = str(folder / "run.json")
    print_speedtest(run, diagnosis, num_images=num_images, num_labels=num_labels, console=_console(), record=record)
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


def _measure_workload(wanted: argparse.Namespace, data: Path, num_images: int, bar: ProgressLine) -> tuple[Run, Path]:
    from hasten.measurement.measure import Wanted, measure
    from hasten.workloads.catalog import WORKLOADS

    workload = WORKLOADS[wanted.workload]
    with tempfile.TemporaryFile() as output:
        settings = Wanted(
            steps=wanted.steps,
            seconds=wanted.seconds,
            patience=wanted.wait,
            quick=wanted.quick,
            begun_within=4 * wanted.seconds,
            script_output=output.fileno(),
        )
        words = [str(workload.script), *workload.arguments(data, num_images=num_images)]
        return measure(words, wanted=settings, root=RESULTS, on_progress=bar.update)


# ---------------------------------------------------------------------------------------------------- printing


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def _print_json(value: object) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
