"""The commands that run nothing: report, compare and explain."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import add_subcommand, console, percent, print_json
from hasten.errors import CommandError, DirectoryError, RecordError
from hasten.launch.results import FOLLOWED, RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Subparsers
    from hasten.optimizations.optimization import Optimization
    from hasten.records import PlannedRunRecord, Run, Settings, Tuning

SLOWER = 1  # the exit code
GUARANTEES = {  # as in docs/fixes.md
    "identical": "the same batches and the same arithmetic",
    "rounding": "the same mathematics, rounded otherwise",
    "precision": "fewer bits",
    "recipe": "other training dynamics",
}


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
    from hasten.measurement.diagnose import diagnose
    from hasten.reports.export import csv_of, trace_of
    from hasten.reports.text import print_diagnosis
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
    from hasten.diagnosis.compare import compare
    from hasten.reports.text import print_comparison

    old, new = ([find_saved(name, root=RESULTS).run for name in names.split(",")] for names in (args.old, args.new))
    found = compare(old, new, max_slowdown=args.max_slowdown)
    if args.json:
        print_json({"comparison": found})
    else:
        print_comparison(found, console=console())
    return SLOWER if found.verdict == "slower" else 0


# ---------------------------------------------------------------------------------------------------- explain


def add_explain(subparsers: Subparsers) -> None:
    """Add `hasten explain`."""
    parser = add_subcommand(
        subparsers, "explain", "Say what a finding or a fix means; without a name, list them.", _explain
    )
    parser.add_argument(
        "name", nargs="?", metavar="FINDING|FIX", help="as in a report, for example slow_decode or bf16"
    )


def _explain(args: argparse.Namespace) -> int:
    from hasten.optimizations.catalog import CATALOG
    from hasten.reports.explanations import print_explanation, sections

    if args.name is None:
        text = f"**Findings**: {', '.join(sections())}\n\n**Fixes**: {', '.join(CATALOG)}"
    elif args.name in sections():
        answers = [name for name, fix in CATALOG.items() if args.name in fix.answers]
        fixes = f"\n\n**Fixes.** {', '.join(f'`{name}`' for name in answers)}" if answers else ""
        text = f"**{args.name}**\n\n{sections()[args.name]}{fixes}"
    elif args.name in CATALOG:
        text = _fix(CATALOG[args.name])
    else:
        raise CommandError(f"no finding or fix is named {args.name!r}; `hasten explain` lists them")
    if args.json:
        print_json({"explanation": text})
    else:
        print_explanation(text, console=console())
    return 0


def _fix(fix: Optimization) -> str:
    lines = [
        f"**{fix.name}**: {fix.title}.",
        f"- Guarantee: {fix.guarantee}, {GUARANTEES[fix.guarantee]}.",
        f"- In `hasten.toml`, below `[fixes]`: `{fix.name}`; it may be {fix.allowed}.",
    ]
    for what, names in (("Answers", fix.answers), ("Needs", fix.needs), ("Not with", fix.excludes)):
        if names:
            lines.append(f"- {what}: {', '.join(f'`{name}`' for name in names)}.")
    return "\n\n".join([lines[0], "\n".join(lines[1:])])


# ----------------------------------------------------------------------------------------------- saved results

LATEST = 4e9  # seconds since 1970; a later time is corrupt
RUN, TUNING = "run.json", "tuning.json"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A run, and the tuning run that it belongs to."""

    path: Path
    run: Run
    tuning: Tuning | None = None
    after: Run | None = None  # the diagnosed run with the largest part of the plan
    under: Settings = field(default_factory=dict)  # its settings
    followed: tuple[PlannedRunRecord, ...] = ()  # runs of the script with a plan since then, the last first


def find_saved(saved: str | None, *, root: Path) -> Saved:
    """The run or tuning run of this name, or the last one. Raises RecordError if there is none or it cannot be read."""
    from hasten.records import Tuning, from_json

    path = _last(root) if saved is None else _named(saved, root)
    if path.name != TUNING:
        return Saved(path=path, run=_run(path))
    tuning = from_json(Tuning, path.read_bytes(), source=str(path))
    if not tuning.runs:
        raise RecordError(f"{path} contains no run; tune again")
    runs = path.parent.parent.parent / "runs"
    first = runs / tuning.runs[0] / RUN
    if not first.is_file():
        raise RecordError(f"{path} belongs to a run that was deleted ({first}); tune again")
    after, under = None, {}
    with contextlib.suppress(RecordError, OSError):
        near, settings = nearest_run(tuning)
        if near is not None:
            after, under = _run(runs / near / RUN), settings
    followed = _followed(tuning, path.parent.parent.parent / FOLLOWED)
    return Saved(path=path, run=_run(first), tuning=tuning, after=after, under=under, followed=followed)


def _followed(tuning: Tuning, path: Path) -> tuple[PlannedRunRecord, ...]:
    """Runs of the same script, with any arguments, that ended after the tuning run started; the last first."""
    from hasten.records import PlannedRunRecord, from_json
    from hasten.tuning.plan import script_of

    lines: list[bytes] = []
    with contextlib.suppress(OSError):
        lines = path.read_bytes().splitlines()
    found: list[PlannedRunRecord] = []
    for line in reversed(lines):
        # A line may be truncated or corrupt, which must not make the report fail.
        with contextlib.suppress(RecordError, ValueError, RecursionError):
            found.append(from_json(PlannedRunRecord, line))
    folder, script = path.parent.parent, script_of(tuning.command)  # both were started in it
    return tuple(one for one in found if _same(one.script, script, folder) and tuning.started < one.ended < LATEST)


def _same(one: str, other: str, folder: Path) -> bool:
    """Whether both are the same script or module."""
    return one == other or (bool(one and other) and (folder / one).resolve() == (folder / other).resolve())


def nearest_run(tuning: Tuning) -> tuple[str | None, Settings]:
    """The id of the run with the largest part of the plan's settings and no others, and those settings; None without one."""
    plan = tuning.settings.items()
    made = [(id, on) for id, on in zip(tuning.runs, tuning.run_settings) if on and on.items() <= plan]
    return max(made, key=lambda one: len(one[1]), default=(None, {}))


def _run(path: Path) -> Run:
    from hasten.records import Run, from_json

    run = from_json(Run, path.read_bytes(), source=str(path))
    if not run.steps:
        raise RecordError(f"{path} contains no steps; measure again")
    return run


def _last(root: Path) -> Path:
    """The newest result of both kinds; a tuning run ends after its own runs."""
    found = [*(root / "runs").glob(f"*/{RUN}"), *(root / "tunings").glob(f"*/{TUNING}")]
    if not found:
        raise RecordError("no saved run here; `hasten diagnose SCRIPT` makes one")
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def _named(saved: str, root: Path) -> Path:
    given = Path(saved)
    places = [given, given / RUN, given / TUNING, root / "runs" / saved / RUN, root / "tunings" / saved / TUNING]
    for path in places:
        if path.is_file():
            return path
    raise RecordError(f"no such run: {saved}; `ls {root / 'runs'} {root / 'tunings'}` lists the saved runs")
