"""The commands that read saved results and run nothing: report and compare."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import add_subcommand, console, percent, print_json
from hasten.errors import DirectoryError
from hasten.launch.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Subparsers
    from hasten.cli.saved import Saved

SLOWER = 1  # the exit code


# ----------------------------------------------------------------------------------------------------- report


def add_report(subparsers: Subparsers) -> None:
    """Add `hasten report`."""
    parser = add_subcommand(subparsers, "report", "Show an earlier result again, without running anything.", _report)
    parser.add_argument(
        "saved",
        nargs="?",
        metavar="RUN",
        help="a run or a tuning run: its id, folder or file [default: the last one]",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page that opens offline")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto or about:tracing")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table with one row per step")


def _report(args: argparse.Namespace) -> int:
    from hasten.cli.saved import find_saved
    from hasten.measurement.diagnose import diagnose
    from hasten.reports.steps_table import csv_of
    from hasten.reports.text import print_diagnosis
    from hasten.reports.trace import trace_of
    from hasten.reports.tuning import print_tuning

    saved = find_saved(args.saved, root=RESULTS)
    files: dict[str, Callable[[], str]] = {
        "html": lambda: _page(saved),
        "trace": lambda: trace_of(saved.run),
        "csv": lambda: csv_of(saved.run),
    }
    requested = {name: write for name, write in files.items() if getattr(args, name) is not None}
    for name, write in requested.items():
        _write(getattr(args, name), write(), option=name)
    diagnosis = diagnose(saved.run)
    if args.json:
        searched = {"tuning": saved.tuning, "followed": saved.followed} if saved.tuning is not None else {}
        print_json({"run": saved.run, "diagnosis": diagnosis, **searched})
    elif not requested:
        print_diagnosis(
            saved.run,
            diagnosis,
            console=console(),
            record=str(saved.path),
            before_tuning=saved.tuning is not None,
        )
        if saved.tuning is not None:
            print()
            print_tuning(saved.tuning, console=console(), followed=saved.followed)
    return 0


def _page(saved: Saved) -> str:
    from hasten.measurement.diagnose import diagnose
    from hasten.reports.page.page import PageInput, page

    return page(
        PageInput(
            run=saved.run,
            diagnosis=diagnose(saved.run),
            tuning=saved.tuning,
            after=saved.after,
            under=saved.under,
            followed=saved.followed,
        )
    )


def _write(path: Path, text: str, *, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DirectoryError(f"cannot write {path} ({error.strerror}); use --{option} with another path") from None


# ---------------------------------------------------------------------------------------------------- compare


def add_compare(subparsers: Subparsers) -> None:
    """Add `hasten compare`."""
    description = (
        f"Compare two results: has the script become slower? Exits with {SLOWER} if it is significantly slower."
    )
    parser = add_subcommand(subparsers, "compare", description, _compare)
    parser.add_argument("old", metavar="OLD", help="the earlier run, or better several of them, separated by commas")
    parser.add_argument("new", metavar="NEW", help="the later run, or several of them")
    parser.add_argument(
        "--max-slowdown",
        type=percent,
        default=0.05,
        metavar="P",
        help="slowdown of the step time that is allowed [default: 5%%]",
    )


def _compare(args: argparse.Namespace) -> int:
    from hasten.cli.saved import find_saved
    from hasten.diagnosis.compare import compare
    from hasten.reports.comparison import print_comparison

    old, new = ([find_saved(name, root=RESULTS).run for name in names.split(",")] for names in (args.old, args.new))
    found = compare(old, new, max_slowdown=args.max_slowdown)
    if args.json:
        print_json({"comparison": found})
    else:
        print_comparison(found, console=console())
    return SLOWER if found.verdict == "slower" else 0
