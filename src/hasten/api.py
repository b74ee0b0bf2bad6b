"""The commands as functions: diagnose and tune a script from Python, and read a plan."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from hasten.errors import CommandError
from hasten.launch.results import RESULTS
from hasten.result import Diagnosed, Tuned
from hasten.tuning.plan import NAME, Plan, read_plan

Progress = Callable[[str, float, float], object]


def diagnose(
    command: str | Sequence[str],
    *,
    seconds: float = 20.0,
    quick: bool = False,
    on_progress: Progress | None = None,
) -> Diagnosed:
    """Measure an unmodified training script and find what slows it down, as `hasten diagnose` does.

    The script runs in its own process and its writes are discarded. The run is saved in `.hasten`.

    Args:
        command: the command line, as one string or as a list of words: "train.py --lr 0.1", "-m package.train", or any
            other command.
        seconds: how long the first run is measured, at most.
        quick: a single run: causes are estimated, not confirmed.
        on_progress: called with the current stage, how many seconds of it are done, and how many it takes.

    Returns:
        The run, its diagnosis and its findings.

    Raises:
        CommandError: there is no such script or command, or an argument is not valid.
        NoStepError: no training step was seen.
        ScriptError: the script failed.

    Example:
        ::

            result = hasten.diagnose("train.py --epochs 3")
            for finding in result.findings:
                print(finding.title, finding.recoverable)  # seconds per step
    """
    from hasten.measurement.measure import BEGUN_WITHIN, BEGUN_WITHIN_IF_SLOW, MeasureOptions, measure

    words, module = _words(command)
    _check_seconds(seconds)
    options = MeasureOptions(
        seconds=seconds, quick=quick, begun_within=BEGUN_WITHIN, begun_within_if_slow=BEGUN_WITHIN_IF_SLOW
    )
    run, folder = measure(
        words, module=module, options=options, root=RESULTS, on_progress=on_progress or (lambda _s, _d, _t: None)
    )
    return Diagnosed(run, folder)


def tune(
    command: str | Sequence[str],
    *,
    seconds: float = 600.0,
    metric: str | None = None,
    higher_is_better: bool = True,
    plan: str | Path = NAME,
    on_progress: Progress | None = None,
    on_result: Callable[[str], object] | None = None,
) -> Tuned:
    """Try fixes in short trials, keep those that are proven to help, and write them to a plan, as `hasten tune` does.

    Args:
        command: the command line, as in `diagnose`.
        seconds: the budget; a trial that has begun is finished.
        metric: a regular expression with one group for a number in the script's output that must not get worse.
        higher_is_better: whether higher values of the metric are better.
        plan: the file to write.
        on_progress: as in `diagnose`.
        on_result: called with one line for each trial.

    Returns:
        The tuning run: `settings`, `speedup`, `is_proven`, and everything that was tried.

    Raises:
        HastenError: as `diagnose`; PlanError if `metric` is not valid.

    Example:
        ::

            tuned = hasten.tune("train.py --epochs 3", seconds=1800)
            if tuned.is_proven:
                print(tuned.speedup.value, tuned.settings)
    """
    from hasten.records import Run, from_json
    from hasten.tuning.budget import Budget
    from hasten.tuning.metric import Metric, pattern_of
    from hasten.tuning.plan import check_place, write_plan
    from hasten.tuning.tune import tune as search

    words, module = _words(command)
    _check_seconds(seconds)
    path = Path(plan)
    check_place(path)
    chosen = Metric(pattern_of(metric), higher_is_better=higher_is_better) if metric is not None else None
    tuning = search(
        words,
        module=module,
        budget=Budget(seconds=seconds, metric=chosen),
        root=RESULTS,
        on_progress=on_progress or (lambda _s, _d, _t: None),
        on_result=on_result or (lambda _: None),
        on_plan=lambda found: write_plan(path, found),
    )
    write_plan(path, tuning)
    first = RESULTS / "runs" / tuning.runs[0] / "run.json"
    run = from_json(Run, first.read_bytes(), source=str(first))
    return Tuned(tuning, run, RESULTS / "tunings" / tuning.id, path)


def load_plan(path: str | Path = NAME) -> Plan:
    """Read a plan.

    Args:
        path: its file.

    Returns:
        The plan: `settings` of the fixes that are on, the `command` it was made for, and `is_proven`.

    Raises:
        PlanError: the file is missing or not a valid plan.

    Example:
        >>> _ = Path("plan.toml").write_text("[fixes]\\nbf16 = true\\n")
        >>> load_plan("plan.toml").settings
        {'bf16': True}
    """
    return read_plan(Path(path))


def _check_seconds(seconds: object) -> None:
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise CommandError(f"seconds={seconds!r} is not valid: use a number above 0")


def _words(command: str | Sequence[str]) -> tuple[list[str], bool]:
    """The words of a command line, and whether they name a module."""
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    except ValueError as error:
        raise CommandError(f"{command!r} is not a valid command line ({error})") from None
    return (words[1:], True) if words[:1] == ["-m"] else (words, False)
