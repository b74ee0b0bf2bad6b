"""tune and run: the verbs that make a script faster."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import (
    WHAT_TO_RUN,
    above_0,
    add_command,
    add_verb,
    command_of,
    console,
    print_json,
    tell,
    time_span,
)
from hasten.errors import CommandError, PlanError
from hasten.measurement.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Verbs
    from hasten.records import Tuning
    from hasten.tuning.tune import Budget

PLAN = Path("hasten.toml")


# ------------------------------------------------------------------------------------------------------- tune


def add_tune(verbs: Verbs) -> None:
    """`hasten tune`."""
    says = "Try the fixes in short trials, keep those that are proven to help, and write them to hasten.toml."
    verb = add_verb(verbs, "tune", says, _tune, usage=f"hasten tune [options] {WHAT_TO_RUN}")
    _add_budget(verb)
    verb.add_argument("--plan", type=Path, default=PLAN, metavar="FILE", help="where the plan goes (hasten.toml)")
    verb.add_argument("--resume", action="store_true", help="go on with the last search of this command")
    add_command(verb)


def _add_budget(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--budget",
        type=time_span,
        default=600.0,
        metavar="TIME",
        help="how long it may take, with units (default: 10m)",
    )
    verb.add_argument("--wait", type=above_0, default=60.0, metavar="S", help="wait S seconds for a step (60)")
    verb.add_argument("--epochs", type=above_0, metavar="N", help="training takes N: start-up costs are charged")
    verb.add_argument("--recipe", action="store_true", help="try other batch sizes and schedules too; needs --metric")
    verb.add_argument("--metric", metavar="REGEX", help="a number in the script's output that must not get worse")
    verb.add_argument(
        "--target", type=float, metavar="N", help="of that number: recipes are tried by how soon it is reached"
    )
    verb.add_argument("--metric-lower", action="store_true", help="of that number, less is better")


def _tune(wanted: argparse.Namespace, *, resume: bool | None = None) -> int:
    from hasten.reports.tuning import print_tuning
    from hasten.tuning.plan import check_place, write_plan

    check_place(wanted.plan)
    tuning = _search(wanted, resume=wanted.resume if resume is None else resume)
    write_plan(wanted.plan, tuning)
    record = RESULTS / "tunings" / tuning.id / "tuning.json"
    if wanted.json:
        print_json({"tuning": tuning, "plan": str(wanted.plan)})
    else:
        print_tuning(tuning, console=console(), plan=str(wanted.plan), record=str(record))
    return 0


def _search(wanted: argparse.Namespace, *, resume: bool) -> Tuning:
    from hasten.reports.progress import progress
    from hasten.tuning.tune import tune

    with progress(console(stderr=True), quiet=wanted.json, expected=wanted.budget) as bar:
        return tune(
            command_of(wanted),
            module=wanted.module,
            budget=_budget_of(wanted),
            resume=resume,
            root=RESULTS,
            on_progress=bar.update,
            on_result=bar.say,
        )


def _budget_of(wanted: argparse.Namespace) -> Budget:
    from hasten.tuning.metric import Metric
    from hasten.tuning.tune import Budget

    if wanted.recipe and wanted.metric is None:
        raise PlanError("--recipe changes how the model is trained; say by --metric 'REGEX' what must not get worse")
    if wanted.target is not None and not wanted.recipe:
        raise PlanError("--target is what recipes are tried by; add --recipe and --metric 'REGEX'")
    if wanted.metric_lower and wanted.metric is None:
        raise PlanError("--metric-lower says which way --metric is better; add --metric 'REGEX'")
    metric = None
    if wanted.metric is not None:
        try:
            pattern = re.compile(wanted.metric)
        except re.error as error:
            raise PlanError(f"--metric {wanted.metric!r} is no regular expression ({error})") from None
        if pattern.groups != 1:
            raise PlanError(f"--metric {wanted.metric!r} needs one group round the number, as in 'F1: ([0-9.]+)'")
        metric = Metric(pattern, higher_is_better=not wanted.metric_lower, target=wanted.target)
    return Budget(
        seconds=wanted.budget,
        patience=wanted.wait,
        recipes=wanted.recipe,
        metric=metric,
        num_epochs=wanted.epochs,
        diagnose_seconds=min(Budget.diagnose_seconds, wanted.budget / 6),
    )


# -------------------------------------------------------------------------------------------------------- run


def add_run(verbs: Verbs) -> None:
    """`hasten run`."""
    says = "Run a script, unmodified, under the plan of hasten.toml."
    verb = add_verb(verbs, "run", says, _run, usage=f"hasten run [options] {WHAT_TO_RUN}")
    verb.add_argument("--plan", type=Path, default=PLAN, metavar="FILE", help="the plan (hasten.toml)")
    verb.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting; repeatable")
    verb.add_argument("--auto", action="store_true", help="tune first, where there is no plan yet")
    _add_budget(verb)
    add_command(verb)


def _run(wanted: argparse.Namespace) -> int:
    from hasten.machine.machine import read_machine
    from hasten.measurement.launch import command_words
    from hasten.tuning.plan import Plan, doubts, read_plan, with_changes
    from hasten.tuning.running import run_under

    if wanted.json:
        raise CommandError("run prints what the script prints; `hasten report --json` prints the record")
    words = command_of(wanted)
    command = command_words(words, module=wanted.module)
    if wanted.auto and not wanted.plan.exists():
        _tune(wanted, resume=False)
    told = ("-m", *words) if wanted.module else tuple(words)
    bare = not wanted.plan.exists() and wanted.set and wanted.plan == PLAN
    plan = with_changes(Plan(settings={}, proof="proven") if bare else read_plan(wanted.plan), wanted.set)
    for line in doubts(plan, read_machine(), told):
        tell(line)
    return run_under(plan, command, told=told, root=RESULTS)
