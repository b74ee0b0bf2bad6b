"""The commands that make a script faster, and prove it: tune, run and prove."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.parts import (
    WHAT_TO_RUN,
    above_0,
    add_command,
    add_subcommand,
    add_verbose,
    command_of,
    console,
    hasten_line,
    more,
    print_error,
    print_json,
    time_span,
)
from hasten.errors import CommandError, PlanError
from hasten.folders import OWN_SCRIPT, is_bundled
from hasten.launch.results import RESULTS

if TYPE_CHECKING:
    from hasten.cli.parts import Subparsers
    from hasten.records import Tuning
    from hasten.tuning.budget import Budget

PLAN = Path("hasten.toml")
WORSE = 1  # the exit code


# ------------------------------------------------------------------------------------------------------- tune


def add_tune(subparsers: Subparsers) -> None:
    """Add `hasten tune`."""
    description = "Try fixes in short trials, keep those that are proven to help, and write them to hasten.toml."
    examples = {
        "hasten tune train.py --epochs 3": "10 minutes",
        "hasten tune --budget 30m train.py": "a longer search finds more",
        "hasten tune --metric 'acc: ([0-9.]+)' train.py": "this number must not get worse",
        "hasten tune --resume train.py": "after Ctrl-C",
    }
    usage = f"hasten tune [options] {WHAT_TO_RUN}"
    parser = add_subcommand(subparsers, "tune", description, _tune, usage=usage, examples=examples)
    _add_budget(parser)
    parser.add_argument(
        "--plan", type=Path, default=PLAN, metavar="FILE", help="file to write the plan to [default: hasten.toml]"
    )
    parser.add_argument(
        "--resume", action="store_true", help="resume the last interrupted tuning run of this command"
    )
    add_verbose(parser)
    add_command(parser)


def _add_budget(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    parser.add_argument(
        "--budget",
        type=time_span,
        default=600.0,
        metavar="TIME",
        help="total time, with a unit [default: 10m]",
    )
    parser.add_argument(
        "--wait", type=above_0, default=60.0, metavar="S", help="give up after S seconds without a step [default: 60]"
    )
    parser.add_argument(
        "--epochs",
        type=above_0,
        metavar="N",
        help="planned number of epochs; a fix must earn back its startup cost within them",
    )
    parser.add_argument(
        "--recipe", action="store_true", help="also try other batch sizes and schedules; needs --metric"
    )
    parser.add_argument(
        "--metric",
        metavar="REGEX",
        help="a number in the script's output that must not get worse, as in 'F1: ([0-9.]+)'",
    )
    parser.add_argument(
        "--target",
        type=float,
        metavar="N",
        help="target value of --metric; recipes are ranked by the time to reach it",
    )
    parser.add_argument("--metric-lower", action="store_true", help="lower values of --metric are better")
    parser.add_argument(
        "--runs-on",
        metavar="PLACE",
        help="make the whole runs for --metric at once on other machines: ray, or slurm:timeout_min=60,gpus_per_node=1",
    )


def _tune(args: argparse.Namespace, *, resume: bool | None = None) -> int:
    from hasten.reports.tuning import print_tuning
    from hasten.tuning.plan import check_place, write_plan

    check_place(args.plan)
    tuning = _search(args, resume=args.resume if resume is None else resume)
    write_plan(args.plan, tuning)
    record = RESULTS / "tunings" / tuning.id / "tuning.json"
    if args.json:
        print_json({"tuning": tuning, "plan": str(args.plan)})
    else:
        print_tuning(
            tuning,
            console=console(),
            plan=str(args.plan),
            record=str(record),
            verbose=args.verbose,
            next=next_after_tuning(tuning, args.plan),
            details=more(verbose=args.verbose),
        )
    return 0


def next_after_tuning(tuning: Tuning, plan: Path = PLAN) -> str:
    """The command to run after a tuning run: the script with the plan; "" if the plan is empty."""
    if is_bundled(tuning.command):
        return OWN_SCRIPT
    return (
        hasten_line("run", tuning.command, *(["--plan", str(plan)] if plan != PLAN else []))
        if tuning.settings
        else ""
    )


def _search(args: argparse.Namespace, *, resume: bool) -> Tuning:
    from hasten import format
    from hasten.reports.progress import progress
    from hasten.tuning.elsewhere import open_elsewhere
    from hasten.tuning.plan import write_plan
    from hasten.tuning.tune import tune

    with contextlib.ExitStack() as around:
        budget = _budget_of(args)
        if budget.metric is not None and args.runs_on is not None:
            place = around.enter_context(open_elsewhere(args.runs_on, RESULTS))
            budget = replace(budget, metric=replace(budget.metric, elsewhere=place))
        bar = around.enter_context(progress(console(stderr=True), quiet=args.json, expected=args.budget))

        def so_far(tuning: Tuning) -> None:
            write_plan(args.plan, tuning)
            bar.say(f"proven so far, and written to {args.plan}: {format.settings(tuning.settings)}")

        return tune(
            command_of(args),
            module=args.module,
            budget=budget,
            resume=resume,
            root=RESULTS,
            on_progress=bar.update,
            on_result=bar.say,
            on_plan=so_far,
        )


def _budget_of(args: argparse.Namespace) -> Budget:
    from hasten.tuning.budget import Budget
    from hasten.tuning.metric import Metric, pattern_of

    if args.recipe and args.metric is None:
        raise PlanError("--recipe changes how the model is trained; add --metric 'REGEX' for what must not get worse")
    if args.target is not None and not args.recipe:
        raise PlanError("--target is used to rank recipes; add --recipe and --metric 'REGEX'")
    if args.metric_lower and args.metric is None:
        raise PlanError("--metric-lower needs --metric; add --metric 'REGEX'")
    if args.runs_on is not None and args.metric is None:
        raise PlanError("--runs-on is for the whole runs of --metric; add --metric 'REGEX'")
    if args.runs_on is not None and args.target is not None:
        raise PlanError("the time to a --target is compared on this machine; leave out --runs-on")
    metric = None
    if args.metric is not None:
        metric = Metric(pattern_of(args.metric), higher_is_better=not args.metric_lower, target=args.target)
    return Budget(
        seconds=args.budget,
        patience=args.wait,
        recipes=args.recipe,
        metric=metric,
        num_epochs=args.epochs,
    )


# -------------------------------------------------------------------------------------------------------- run


def add_run(subparsers: Subparsers) -> None:
    """Add `hasten run`."""
    description = "Run an unmodified script with the plan in hasten.toml."
    examples = {
        "hasten run train.py --epochs 3": "with the plan in hasten.toml",
        "hasten run --set bf16=false train.py": "the plan without one of its fixes",
        "hasten run --auto train.py": "tune first if there is no plan yet",
    }
    usage = f"hasten run [options] {WHAT_TO_RUN}"
    parser = add_subcommand(subparsers, "run", description, _run, usage=usage, examples=examples)
    parser.add_argument(
        "--plan", type=Path, default=PLAN, metavar="FILE", help="file of the plan [default: hasten.toml]"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting of the plan; repeatable"
    )
    parser.add_argument("--auto", action="store_true", help="tune first if there is no plan yet")
    add_verbose(parser)
    _add_budget(parser.add_argument_group("options of the tuning run that --auto starts"))
    add_command(parser)


def _run(args: argparse.Namespace) -> int:
    from hasten.launch.launch import command_argv
    from hasten.machine.machine import read_machine
    from hasten.tuning.plan import Plan, doubts, read_plan, with_changes
    from hasten.tuning.running import run_under

    if args.json:
        raise CommandError("run prints only the script's output; use `hasten report --json` for the record")
    argv = command_of(args)
    command = command_argv(argv, module=args.module)
    if args.auto and not args.plan.exists():
        _tune(args, resume=False)
    recorded = ("-m", *argv) if args.module else tuple(argv)
    only_set = not args.plan.exists() and args.set and args.plan == PLAN
    plan = with_changes(Plan(settings={}, proof="proven") if only_set else read_plan(args.plan), args.set)
    try:
        found = doubts(plan, read_machine(), recorded)
    except PlanError as error:
        if not args.set or args.plan != PLAN:
            raise
        found = [f"{str(error).partition(';')[0]}: it is ignored, and only --set counts"]
        plan = with_changes(Plan(settings={}, proof="proven"), args.set)
    for line in found:
        print_error(line)
    return run_under(plan, command, recorded=recorded, root=RESULTS)


# ------------------------------------------------------------------------------------------------------ prove


def add_prove(subparsers: Subparsers) -> None:
    """Add `hasten prove`."""
    description = (
        "Compare two versions of a script, or any two commands: is the new one faster, and does it train as well? "
        f"Exits with {WORSE} if it is slower or trains worse."
    )
    usage = "hasten prove [options] (OLD.py [its arguments ...] -- NEW.py [its arguments ...] | --git REVISION SCRIPT.py ...)"
    examples = {
        "hasten prove train.py -- train_new.py --lr 0.1": "two versions, or any two commands",
        "hasten prove --git HEAD~1 train.py": "a commit against the working tree",
    }
    parser = add_subcommand(subparsers, "prove", description, _prove, usage=usage, examples=examples)
    add_verbose(parser)
    parser.add_argument("--git", metavar="REVISION", help="the old version is the script as it was in this commit")
    parser.add_argument(
        "--budget", type=time_span, default=300.0, metavar="TIME", help="total time, with a unit [default: 5m]"
    )
    parser.add_argument(
        "--wait", type=above_0, default=60.0, metavar="S", help="give up after S seconds without a step [default: 60]"
    )
    add_command(parser)


def _prove(args: argparse.Namespace) -> int:
    from hasten.reports.progress import progress
    from hasten.reports.tuning import print_version_proof
    from hasten.tuning.versions import Version, of_revision, prove_versions

    words = command_of(args)
    with contextlib.ExitStack() as around:
        if args.git is not None:
            new = Version(argv=words, module=args.module)
            old = around.enter_context(of_revision(args.git, new))
        else:
            if "--" not in words:
                raise CommandError(
                    "give both versions: `hasten prove OLD.py ... -- NEW.py ...`, or --git REVISION SCRIPT.py"
                )
            at = words.index("--")
            first, second = words[:at], words[at + 1 :]
            old = Version(argv=first, module=args.module)
            new = Version(argv=second[1:], module=True) if second[:1] == ["-m"] else Version(argv=second)
        bar = around.enter_context(progress(console(stderr=True), quiet=args.json, expected=args.budget))
        proof = prove_versions(
            old,
            new,
            seconds=args.budget,
            patience=args.wait,
            root=RESULTS,
            script_output=sys.stderr.fileno() if args.json else None,
            on_progress=bar.update,
        )
    if args.json:
        print_json({"proof": proof})
    else:
        print_version_proof(proof, console=console(), verbose=args.verbose)
    return WORSE if proof.verdict == "slower" or proof.quality == "broken" else 0
