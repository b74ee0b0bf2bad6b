"""The commands that run nothing: report, merge, compare and explain."""

from __future__ import annotations

import argparse
import difflib
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import add_subcommand, add_verbose, console, hasten_line, more, percent, print_error, print_json
from hasten.cli.saved import Saved, find_saved, path_of, saved_lines
from hasten.cli.tuning import next_after_tuning
from hasten.errors import CommandError, DirectoryError
from hasten.folders import SESSION
from hasten.launch.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Subparsers
    from hasten.optimizations.optimization import Optimization

SLOWER, INCONCLUSIVE = 1, 3  # exit codes
BESIDE_THE_RECORD = Path("<beside the record>")
PAGE = "report.html"
GUARANTEES = {  # as in docs/fixes.md
    "identical": "the same batches and the same arithmetic",
    "rounding": "the same mathematics, rounded differently",
    "precision": "fewer bits",
    "recipe": "other training dynamics",
}


# ------------------------------------------------------------------------------------------------------ merge


def add_merge(subparsers: Subparsers) -> None:
    """Add `hasten merge`."""
    examples = {"hasten merge runs/node-0 runs/node-1": "one job, measured on two hosts"}
    description = "Join the runs of one distributed job that was measured on several hosts."
    parser = add_subcommand(subparsers, "merge", description, _merge, examples=examples)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run of each host: its id, or its folder")
    add_verbose(parser)


def _merge(args: argparse.Namespace) -> int:
    import msgspec

    from hasten.launch.ranks import compare, load_ranks, save_ranks
    from hasten.launch.results import new_folder
    from hasten.measurement.diagnose import diagnose
    from hasten.records import to_json

    runs = [find_saved(name, root=RESULTS) for name in args.runs]
    by_run = [load_ranks(one.path.parent) for one in runs]
    for one, ranks in zip(runs, by_run):
        if not ranks:
            raise CommandError(f"{one.run.id} has no ranks to join; it trained alone")
    if len({rank.job for ranks in by_run for rank in ranks}) > 1:
        raise CommandError("these runs are not of one job; join runs that were measured at the same time")
    joined = [*{rank.rank: rank for ranks in by_run for rank in ranks}.values()]  # rank 0 may have collected others'
    first = next((n for n, ranks in enumerate(by_run) if any(r.rank == 0 for r in ranks)), 0)
    folder = new_folder(RESULTS / "runs")
    run = msgspec.structs.replace(runs[first].run, id=folder.name, ranks=compare(joined))
    (folder / "run.json").write_bytes(to_json(run))
    save_ranks(joined, folder)
    saved = find_saved(folder.name, root=RESULTS)
    if args.json:
        print_json({"run": saved.run, "diagnosis": diagnose(saved.run)})
    else:
        _print(saved, verbose=args.verbose)
    return 0


# ----------------------------------------------------------------------------------------------------- report


def add_report(subparsers: Subparsers) -> None:
    """Add `hasten report`."""
    examples = {
        "hasten report": "the last result",
        "hasten report --open": "as a page in the browser",
        "hasten report --list": "all results",
        "hasten report last~1 --html before.html": "the result before the last one",
    }
    description = "Show an earlier result again, without running anything."
    parser = add_subcommand(subparsers, "report", description, _report, examples=examples)
    parser.add_argument(
        "saved",
        nargs="?",
        metavar="RUN",
        help="a run or a tuning run: its id, folder or file, `last` or `last~1` [default: last]",
    )
    parser.add_argument("--list", action="store_true", help="list the saved results, the newest first")
    parser.add_argument(
        "--html",
        nargs="?",
        const=BESIDE_THE_RECORD,
        type=Path,
        metavar="FILE",
        help=f"write an HTML page that opens offline [default: {PAGE} next to the record]",
    )
    parser.add_argument("--open", action="store_true", help="write the page and open it in a browser")
    add_verbose(parser)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto or about:tracing")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table with one row per step")


def _report(args: argparse.Namespace) -> int:
    from hasten.measurement.diagnose import diagnose
    from hasten.reports.export import csv_of, trace_of

    if args.list:
        return _list(as_json=args.json)
    name = "" if args.html in (None, BESIDE_THE_RECORD) else str(args.html)
    if args.saved is None and "." not in name and path_of(name, RESULTS) is not None:
        raise CommandError(f"{name} is a saved run; use `hasten report {name} --html`")
    saved = find_saved(args.saved, root=RESULTS)
    page = Path(name) if name else _default_page(saved)
    if args.open or args.html is not None:
        args.html = page
    files: dict[str, Callable[[], str]] = {
        "html": lambda: _page(saved),
        "trace": lambda: trace_of(saved.run),
        "csv": lambda: csv_of(saved.run),
    }
    requested = {name: write for name, write in files.items() if getattr(args, name) is not None}
    for name, write in requested.items():
        _write(getattr(args, name), write(), option=name)
    if args.open:
        _open(page)
    diagnosis = diagnose(saved.run)
    if args.json:
        searched = {"tuning": saved.tuning, "followed": saved.followed} if saved.tuning is not None else {}
        print_json({"run": saved.run, "diagnosis": diagnosis, **searched})
    elif requested:
        for name in requested:
            print(f"wrote {getattr(args, name)}")
    else:
        _print(saved, verbose=args.verbose)
    return 0


def _default_page(saved: Saved) -> Path:
    """The page's file: in the folder of a saved result, else in the working directory."""
    here = saved.path.parent
    return here / PAGE if _is_ours(saved) else Path(f"hasten-{saved.run.id}.html")


def _is_ours(saved: Saved) -> bool:
    """Whether a result lies where hasten keeps its results."""
    return saved.path.resolve().parent.parent.name in ("runs", "tunings")


def _name(saved: Saved) -> str:
    """How `hasten report` finds a result; "" for the last one."""
    last = path_of("last", RESULTS)
    if last is not None and last.resolve() == saved.path.resolve():
        return ""
    return saved.path.resolve().parent.name if _is_ours(saved) else str(saved.path)


def _print(saved: Saved, *, verbose: bool) -> None:
    from hasten.measurement.diagnose import diagnose
    from hasten.reports.text import print_diagnosis
    from hasten.reports.tuning import print_tuning

    record = str(saved.path)
    details = more(_name(saved), verbose=verbose)
    if saved.tuning is not None:
        print_tuning(
            saved.tuning,
            console=console(),
            followed=saved.followed,
            record=record,
            verbose=verbose,
            next=next_after_tuning(saved.tuning),
            details=details,
        )
    if saved.tuning is None or verbose:
        if saved.tuning is not None:
            print(
                "\nThe unmodified script, as it was measured before the search. The baseline above is a later figure: it took"
                "\nturns with the plan, so that both were slowed down by the same things.\n"
            )
        can_start = saved.tuning is None and saved.run.command[:1] != (SESSION,)
        next = hasten_line("tune", saved.run.command) if can_start else ""
        print_diagnosis(
            saved.run,
            diagnose(saved.run),
            console=console(),
            record=record,
            verbose=verbose,
            next=next,
            details="" if saved.tuning is not None else details,
        )


def _list(*, as_json: bool) -> int:
    from hasten.reports.text import print_saved

    found = list(saved_lines(RESULTS))
    if as_json:
        print_json(
            {
                "saved": [
                    {"id": one.id, "when": one.when, "command": one.command, "result": one.result} for one in found
                ]
            }
        )
        return 0
    if not found:
        raise CommandError("no saved run here; `hasten diagnose SCRIPT` makes one")
    when = [time.strftime("%Y-%m-%d %H:%M", time.localtime(one.when)) for one in found]
    print_saved([(one.id, at, " ".join(one.command), one.result) for one, at in zip(found, when)], console=console())
    return 0


def _open(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        print_error(f"no browser can be opened here; copy {page} to a machine that has one")


def _page(saved: Saved) -> str:
    from hasten.measurement.diagnose import diagnose
    from hasten.reports.page.page import PageInput, page

    return page(
        PageInput(
            run=saved.run,
            diagnosis=diagnose(saved.run),
            tuning=saved.tuning,
            after=saved.after,
            after_diagnosis=diagnose(saved.after) if saved.after is not None else None,
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
    examples = {
        "hasten compare last~1 last": "",
        "hasten compare a,b,c d,e,f": "several runs on each side: their variation counts",
        "hasten compare --strict old.json new.json": "for a CI job: also fails if nothing is known",
    }
    parser = add_subcommand(subparsers, "compare", description, _compare, examples=examples)
    parser.add_argument("old", metavar="OLD", help="the earlier run, or better several of them, separated by commas")
    parser.add_argument("new", metavar="NEW", help="the later run, or several of them")
    parser.add_argument(
        "--max-slowdown",
        type=percent,
        default=0.05,
        metavar="P",
        help="slowdown of the step time that is allowed [default: 5%%]",
    )
    parser.add_argument(
        "--strict", action="store_true", help=f"exit with {INCONCLUSIVE} if the comparison is inconclusive"
    )
    parser.add_argument("--force", action="store_true", help="compare runs of different commands")


def _compare(args: argparse.Namespace) -> int:
    from hasten.diagnosis.compare import compare
    from hasten.reports.text import print_comparison

    if not all(name for names in (args.old, args.new) for name in names.split(",")):
        raise CommandError("a name is empty; give runs as in `hasten compare OLD NEW`, or a,b,c d,e,f")
    old, new = ([find_saved(name, root=RESULTS).run for name in names.split(",")] for names in (args.old, args.new))
    commands = {run.command for run in (*old, *new)}
    if len(commands) > 1 and not args.force:
        raise CommandError(
            f"the runs are of different commands ({'; '.join(sorted(' '.join(words) for words in commands))}); "
            "use --force to compare them, or `hasten prove` to compare the commands themselves"
        )
    found = compare(old, new, max_slowdown=args.max_slowdown)
    if args.json:
        print_json({"comparison": found})
    else:
        print_comparison(found, console=console())
    if args.strict and found.verdict == "inconclusive":
        return INCONCLUSIVE
    return SLOWER if found.verdict == "slower" else 0


# ---------------------------------------------------------------------------------------------------- explain


def add_explain(subparsers: Subparsers) -> None:
    """Add `hasten explain`."""
    parser = add_subcommand(
        subparsers,
        "explain",
        "Say what a finding, a fix or a word of the report means; without a name, list them.",
        _explain,
        examples={
            "hasten explain slow_decode": "a finding",
            "hasten explain bf16": "a fix",
            "hasten explain data wait": "a word",
        },
    )
    parser.add_argument("name", nargs="*", metavar="NAME", help="as in a report: slow_decode, bf16, data wait")


def _explain(args: argparse.Namespace) -> int:
    from hasten.optimizations.catalog import CATALOG
    from hasten.reports.explanations import first_sentence, print_explanation, sections, words

    name, word = "_".join(args.name), " ".join(args.name)
    if not args.name:
        found = "\n".join(f"- `{kind}`: {first_sentence(kind)}" for kind in sections())
        fixes = "\n".join(f"- `{fix.name}`: {fix.title}" for fix in CATALOG.values())
        text = f"**Findings**\n\n{found}\n\n**Fixes**\n\n{fixes}\n\n**Words**: {', '.join(words())}"
    elif name in sections():
        answers = [fix for fix, one in CATALOG.items() if name in one.answers]
        fixes = f"\n\n**Fixes.** {', '.join(f'`{fix}`' for fix in answers)}" if answers else ""
        text = f"**{name}**\n\n{sections()[name]}{fixes}"
    elif (fix := CATALOG.get(name) or _tried_by(name)) is not None:
        text = _fix(fix)
    elif word in words():
        text = f"**{word}**: {words()[word]}."
    else:
        near = difflib.get_close_matches(name, [*sections(), *CATALOG, *words()], n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else "`hasten explain` lists them"
        raise CommandError(f"no finding, fix or word is named {word!r}; {hint}")
    if args.json:
        print_json({"explanation": text})
    else:
        print_explanation(text, console=console())
    return 0


def _tried_by(cause: str) -> Optimization | None:
    """The fix that the diagnosis tries to confirm a cause."""
    from hasten.optimizations.catalog import CATALOG

    return next((fix for fix in CATALOG.values() if cause in {one.cause for one in fix.experiments}), None)


def _fix(fix: Optimization) -> str:
    lines = [
        f"**{fix.name}**: {fix.title}.",
        f"- Guarantee: {fix.guarantee}, {GUARANTEES[fix.guarantee]}.",
        f"- In `hasten.toml`, below `[fixes]`: `{fix.name}`; it may be {fix.allowed}.",
    ]
    for what, names in (("For the findings", fix.answers), ("Needs", fix.needs), ("Not with", fix.excludes)):
        if names:
            lines.append(f"- {what}: {', '.join(f'`{name}`' for name in names)}.")
    return "\n\n".join([lines[0], "\n".join(lines[1:])])
