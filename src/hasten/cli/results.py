"""report and compare: the verbs that read what is kept, and run nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import add_verb, console, percent, print_json
from hasten.errors import DirectoryError
from hasten.measurement.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Verbs
    from hasten.cli.saved import Saved

SLOWER = 1  # the exit code


# ----------------------------------------------------------------------------------------------------- report


def add_report(verbs: Verbs) -> None:
    """`hasten report`."""
    verb = add_verb(verbs, "report", "Show an earlier run or search again, without running anything.", _report)
    verb.add_argument(
        "saved", nargs="?", metavar="RUN", help="a run or a search: its id, folder or file (default: the last)"
    )
    verb.add_argument("--html", type=Path, metavar="FILE", help="write one page that opens offline")
    verb.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto or about:tracing")
    verb.add_argument("--csv", type=Path, metavar="FILE", help="write a table with a row a step")


def _report(wanted: argparse.Namespace) -> int:
    from hasten.cli.saved import find_saved
    from hasten.diagnosis.diagnose import diagnose
    from hasten.reports.steps_table import csv_of
    from hasten.reports.text import print_diagnosis
    from hasten.reports.trace import trace_of
    from hasten.reports.tuning import print_tuning

    saved = find_saved(wanted.saved, root=RESULTS)
    files: dict[str, Callable[[], str]] = {
        "html": lambda: _page(saved),
        "trace": lambda: trace_of(saved.run),
        "csv": lambda: csv_of(saved.run),
    }
    asked = {name: write for name, write in files.items() if getattr(wanted, name) is not None}
    for name, write in asked.items():
        _write(getattr(wanted, name), write(), option=name)
    diagnosis = diagnose(saved.run)
    if wanted.json:
        searched = {"tuning": saved.tuning, "followed": saved.followed} if saved.tuning is not None else {}
        print_json({"run": saved.run, "diagnosis": diagnosis, **searched})
    elif not asked:
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
    from hasten.diagnosis.diagnose import diagnose
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
        raise DirectoryError(f"cannot write {path} ({error.strerror}); name another place with --{option}") from None


# ---------------------------------------------------------------------------------------------------- compare


def add_compare(verbs: Verbs) -> None:
    """`hasten compare`."""
    says = f"Say whether a script has become slower; exit code {SLOWER} where it surely has."
    verb = add_verb(verbs, "compare", says, _compare)
    verb.add_argument("old", metavar="OLD", help="a run from before; several, separated by commas, tell more")
    verb.add_argument("new", metavar="NEW", help="a run from now, likewise")
    verb.add_argument(
        "--max-slowdown", type=percent, default=0.05, metavar="P", help="how much longer a step may take (5%%)"
    )


def _compare(wanted: argparse.Namespace) -> int:
    from hasten.cli.saved import find_saved
    from hasten.diagnosis.compare import compare
    from hasten.reports.comparison import print_comparison

    old, new = (
        [find_saved(name, root=RESULTS).run for name in names.split(",")] for names in (wanted.old, wanted.new)
    )
    found = compare(old, new, max_slowdown=wanted.max_slowdown)
    if wanted.json:
        print_json({"comparison": found})
    else:
        print_comparison(found, console=console())
    return SLOWER if found.verdict == "slower" else 0
