"""Print what a tuning run found: the result, its trials, the quality check and what was not tried."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence

from rich.console import Console

from hasten import format
from hasten.records import (
    Check,
    Interval,
    PlannedRunRecord,
    Proof,
    ProofVerdict,
    Settings,
    Skipped,
    Trial,
    Tuning,
    VersionProof,
)
from hasten.reports.sheet import Piece, Sheet

NARROW = 1.2  # largest ratio of an interval's ends that supports "no difference"
VERDICTS: dict[ProofVerdict, str] = {"proven": "passed", "not proven": "not proven", "broken": "failed"}
_STYLES: dict[ProofVerdict, str] = {"proven": "green", "not proven": "yellow", "broken": "red"}


_BAR = 40  # columns of the faster side's bar


def print_tuning(
    tuning: Tuning,
    *,
    console: Console,
    plan: str = "",
    record: str = "",
    followed: Sequence[PlannedRunRecord] = (),
    verbose: bool = False,
    next: str = "",
    details: str = "",
) -> None:
    """Print a tuning run: its result, what made it, and the quality check.

    Args:
        tuning: the tuning run.
        console: where to print.
        plan: path of the plan's file; "": not shown.
        record: path of the saved tuning run; "": not shown.
        followed: runs with the plan since then, the last first.
        verbose: whether to show every trial and every check.
        next: the command to run next; "": not shown.
        details: the command that shows more; "": not shown.
    """
    sheet = Sheet(console)
    result = headline(tuning)
    sheet.headline(result)
    sheet.gap()
    _add_rates(sheet, tuning)
    _add_trials(sheet, tuning, ci="95% CI" not in result, verbose=verbose)
    _add_screening_runs(sheet, tuning)
    if tuning.proof is not None:
        _add_proof(sheet, tuning.proof, verbose=verbose)
    _add_suggestions(sheet, tuning, verbose=verbose)
    if (trial := suggested(tuning)) is not None:
        sheet.paragraph(SUGGESTION, f" {format.speedup(trial.speedup)} with it", label="Suggested")
        sheet.paragraph(pure_line(str(trial.value)), lead="  ")
    _add_followed(sheet, followed)
    if late := left_untried(tuning):
        sheet.paragraph(", ".join(one.fix for one in late), ": no time left; raise --budget", label="Not tried")
    for number, note in enumerate(tuning.notes if verbose else ()):
        sheet.paragraph(note, label="" if number else "Notes")
    if where := cache_line(tuning):
        sheet.paragraph(where, label="Cache")
    if plan:
        sheet.paragraph(plan, label="Plan")
    if record and verbose:
        sheet.paragraph(record, label="Record")
    add_next(sheet, next, details=details)
    sheet.print()


def add_next(sheet: Sheet, command: str, *, details: str) -> None:
    """Add the command to run next, and the one that shows more; "": not shown."""
    if command or details:
        sheet.gap()
    if command:
        sheet.paragraph((command, "bold green"), label="Next")
    if details:
        sheet.paragraph((details, "dim"), label="Details")


def _add_followed(sheet: Sheet, followed: Sequence[PlannedRunRecord]) -> None:
    if not followed:
        return
    last, runs = followed[0], format.count(len(followed), noun="run")
    rate, steps = format.rate(last.samples_per_second), format.count(last.num_steps, noun="step")
    sheet.paragraph(f"{runs} with a plan; the last one: {rate} over {steps}", label="Since")


def headline(tuning: Tuning) -> str:
    """The result in one sentence."""
    took = format.seconds(tuning.seconds, rough=True)
    if tuning.state == "interrupted" and tuning.proof is None:
        done = format.count(len(tuning.trials), noun="trial")
        return f"Interrupted after {took} and {done}: `hasten tune --resume` with the same command continues."
    if not tuning.settings:
        return f"The plan is empty: {why_empty(tuning)}. Search took {took}."
    proof = tuning.proof
    if proof is None:
        return f"Not proven: the search ended after {took}, before the whole plan was compared with the baseline."
    speed = format.speedup(proof.speedup, ci=True)
    if proof.target_speedup is not None:
        sooner = format.ratio_interval(proof.target_speedup, ci=True)
        speed = f"Reaches the target sooner, in whole runs: {sooner}"
    unknown = next((check for check in proof.checks if check.state == "unknown" and not check.is_optional), None)
    if unknown is not None and unknown.what == "quality":
        return f"{speed}. Quality was not checked; search took {took}."
    if unknown is not None and unknown.what == "speed":
        return f"{speed}. Not proven: {unknown.text}; search took {took}."
    return f"{speed}. Quality check {VERDICTS[proof.verdict]} ({proof.guarantee}); search took {took}."


def why_empty(tuning: Tuning) -> str:
    """Why a tuning run kept no fix."""
    if tuning.proof is not None and tuning.proof.verdict == "broken":
        return "; ".join(f"{name} was dropped: {why}" for name, why in taken_out(tuning.proof).items())
    if tuning.proof is not None:
        failed = next((check.text for check in tuning.proof.checks if check.state == "failed"), None)
        return failed or "together the fixes were not faster"
    tried = f"none of {format.count(len(tuning.trials), noun='trial')} was faster" if tuning.trials else ""
    late = ", ".join(one.fix for one in left_untried(tuning))
    if late:
        return "; ".join(filter(None, [tried, f"no time left to try {late}, raise --budget"]))
    return tried or "no fix is expected to save 2% of the step"


SUGGESTION = (
    "if these functions depend only on their arguments and the files these name, add to [cache] in hasten.toml:"
)


def suggested(tuning: Tuning) -> Trial | None:
    """The trial of functions that the user could declare pure, if it was faster; they are never enabled automatically."""
    trials = [
        one for one in tuning.trials if one.fix == "pure" and one.verdict == "faster" and one.speedup is not None
    ]
    return trials[-1] if trials else None


def pure_line(functions: str) -> str:
    """The line for the section [cache] of a plan."""
    names = ", ".join(f'"{name}"' for name in functions.split(","))
    return f"pure = [{names}]"


def cache_line(tuning: Tuning) -> str:
    """Where the plan's cache holds the data: "RAM holds 33% of 3.1 GiB, the disk the rest"; "" without a cache."""
    need, on = tuning.cache, [name for name in ("cache", "disk_cache") if name in tuning.settings]
    if need is None or not on:
        return ""
    if tuning.settings.get("cache", "auto") != "auto":  # the size that the user gave is in the plan
        return f"a full cache needs {format.size(need.total_bytes)}"
    in_memory = f"RAM holds {format.share(need.fits_share)} of {format.size(need.total_bytes)}"
    if "cache" not in on:
        return f"the disk holds {format.size(need.total_bytes)}"
    return f"{in_memory}, the disk the rest" if "disk_cache" in on else in_memory


def baseline_name(settings: Settings) -> str:
    """The name of the side that the plan is compared with: the baseline, and the settings that were on in it."""
    return f"baseline with {format.settings(settings)}" if settings else "baseline"


def taken_out(proof: Proof) -> dict[str, str]:
    """Fixes that were dropped by the quality check, with the reasons."""
    reasons = proof.broken_because or ("it changed what the model learns",) * len(proof.broken_by)
    return dict(zip(proof.broken_by, reasons))


def _add_rates(sheet: Sheet, tuning: Tuning) -> None:
    proof = tuning.proof
    if proof is None or not proof.baseline_rate or not proof.plan_rate:
        return
    kept = ", from the second epoch on" if {"cache", "disk_cache"} & {*tuning.settings} else ""
    speed = f"{format.speedup(proof.speedup)}{kept}"
    fastest = max(proof.baseline_rate, proof.plan_rate)
    block = "█" if sheet.can_show("█") else "#"
    rows: list[list[Piece]] = [
        [name, format.rate(rate), (block * max(1, round(_BAR * rate / fastest)), color)]
        for name, rate, color in (("baseline", proof.baseline_rate, "dim"), ("tuned", proof.plan_rate, "green"))
    ]
    sheet.table(rows, align="lrl", label="Speed")
    sheet.paragraph(speed)


def _add_trials(sheet: Sheet, tuning: Tuning, *, ci: bool, verbose: bool) -> None:
    kept = [trial for trial in tuning.trials if outcome(trial, tuning) == "kept"]
    for number, trial in enumerate(tuning.trials if verbose else kept):
        label = "" if number else "Trials" if verbose else "Kept"
        gain = f"{format.added(trial.added)}: {format.speedup(trial.speedup, ci=ci)}"
        sheet.paragraph(trial_line(trial, tuning, ci=ci) if verbose else gain, label=label)
        ci = ci and trial.speedup is None
    dropped = [trial for trial in tuning.trials if outcome(trial, tuning) not in ("kept", "suggested")]
    if dropped and not verbose:
        words = (f"{format.added(trial.added)} ({outcome(trial, tuning)})" for trial in dropped)
        sheet.paragraph(", ".join(words), label="Dropped")


def outcome(trial: Trial, tuning: Tuning) -> str:
    """The result of a trial: kept, suggested, "faster, not kept", slower, no difference, inconclusive or failed."""
    if trial.verdict == "faster" and trial.fix == "pure":
        return "suggested"
    if trial.verdict == "faster":
        return "kept" if any(name in tuning.settings for name in trial.added) else "faster, not kept"
    speedup = trial.speedup
    is_open = speedup is not None and speedup.low <= 1.0 <= speedup.high and not _is_narrow(speedup)
    return "inconclusive" if trial.verdict == "no difference" and is_open else trial.verdict


def _is_narrow(speedup: Interval) -> bool:
    """Whether an interval is narrow enough to speak of no difference."""
    return speedup.high / max(speedup.low, 1e-9) < NARROW


def state_of(check: Check, verdict: ProofVerdict) -> str:
    """The state of a check; "not needed" for an unknown one of a quality check that passed without it."""
    return "not needed" if check.state == "unknown" and verdict == "proven" else check.state


def left_untried(tuning: Tuning) -> list[Skipped]:
    """Fixes that apply and were not tried for lack of time."""
    return [one for one in untried(tuning) if one.state == "no time"]


def untried(tuning: Tuning) -> list[Skipped]:
    """Fixes without a trial at any time of the tuning run."""
    tried = {name for trial in tuning.trials for name in trial.added} | {*tuning.settings}
    tried |= {name for screened in tuning.screening_runs for name in screened.settings}
    return [one for one in tuning.skipped if one.fix not in tried]


def trial_line(trial: Trial, tuning: Tuning, *, ci: bool = False) -> str:
    """A trial in one line: "bf16: 2.06x (1.68 to 2.52), kept, 3 pairs"."""
    speed = f"{format.ratio_interval(trial.speedup, ci=ci)}, " if trial.speedup is not None else ""
    pairs = f", {len(trial.baseline_seconds)} pairs" if trial.baseline_seconds else ""
    return f"{format.added(trial.added)}: {speed}{outcome(trial, tuning)}{pairs}" + (
        f"; {trial.note}" if trial.note else ""
    )


def _add_screening_runs(sheet: Sheet, tuning: Tuning) -> None:
    """Add the training recipes: when each reached the target, and its final metric."""
    for number, screened in enumerate(tuning.screening_runs):
        shown = format.settings(screened.settings, none="baseline recipe")
        if screened.metric is None:
            result = f"failed; {screened.note}"
        elif screened.reached is None:
            result = f"not reached, final metric {screened.metric:g}"
        else:
            result = f"reached after {format.seconds(screened.reached)}, final metric {screened.metric:g}"
        sheet.paragraph(shown, f": {result}", label="" if number else "Target")


def _add_quality(sheet: Sheet, checks: Sequence[Check], verdict: ProofVerdict, *, verbose: bool) -> None:
    shown = (VERDICTS[verdict], _STYLES[verdict])
    decisive = decisive_check(checks, verdict)
    if not verbose and decisive is not None:
        sheet.paragraph(shown, f": {decisive.text}", label="Quality")
        return
    sheet.paragraph(shown, label="Quality")
    for check in checks:
        sheet.paragraph(f"{state_of(check, verdict)}: {check.text}", lead="  ")


def _add_proof(sheet: Sheet, proof: Proof, *, verbose: bool) -> None:
    _add_quality(sheet, proof.checks, proof.verdict, verbose=verbose)
    if proof.broken_by:
        for name, reason in taken_out(proof).items():
            sheet.paragraph(f"dropped: {name}; {reason}", lead="  ")


def decisive_check(checks: Sequence[Check], verdict: ProofVerdict) -> Check | None:
    """The check that says most: the one that failed or is missing; else what is known of the loss."""
    wrong = [check for check in checks if check.state == "failed"]
    wrong += [check for check in checks if check.state == "unknown" and not check.is_optional]
    if verdict != "proven" and wrong:
        return wrong[0]
    order = ("metric", "target", "band", "batches", "losses")
    known = {check.what: check for check in checks if check.state == "passed"}
    return next((known[what] for what in order if what in known), next(iter(known.values()), None))


def _add_suggestions(sheet: Sheet, tuning: Tuning, *, verbose: bool) -> None:
    for number, one in enumerate(tuning.suggestions):
        gain = format.seconds(one.recoverable)
        sheet.paragraph(
            f"{one.title}: about {gain} per step. Needs a change in your source", label="" if number else "Source"
        )
        place = f"{one.file.removeprefix(tuning.directory.rstrip('/') + '/')}:{one.line}"
        if not verbose:
            sheet.paragraph(place, lead="  ")
            continue
        sheet.paragraph(place, ("  " + one.source, "dim"), lead="  ")
        for line in one.example.splitlines():
            sheet.paragraph((line, "green"), lead="  ")
    if tuning.suggestions and verbose:
        sheet.paragraph(how_to_prove(tuning), lead="  ")


def how_to_prove(tuning: Tuning) -> str:
    """How to show what a change of the source gains."""
    if not tuning.command[0].endswith((".py", "-m")):
        return "Once changed, prove it: hasten prove OLD -- NEW, the two commands"
    return f"Once changed, prove it: hasten prove --git HEAD {shlex.join(tuning.command)}, or hasten prove OLD.py -- NEW.py"


# ---------------------------------------------------------------------------------------------------- versions


def version_headline(proof: VersionProof) -> str:
    """The result of `hasten prove` in one sentence."""
    speed = {
        "faster": format.speedup(proof.speedup, ci=True),
        "slower": f"Slower: {format.ratio_interval(proof.speedup, ci=True)} the speed",
        "no difference": f"No difference in speed: {format.ratio_interval(proof.speedup, ci=True)}",
        "inconclusive": f"Speed inconclusive: {format.ratio_interval(proof.speedup, ci=True)}",
        "failed": "The speed could not be compared",
    }[proof.verdict]
    how = f" ({proof.guarantee})" if proof.guarantee is not None else ""
    took = format.seconds(proof.seconds, rough=True)
    return f"{speed}. Quality check {VERDICTS[proof.quality]}{how}; it took {took}."


def print_version_proof(proof: VersionProof, *, console: Console, verbose: bool = False) -> None:
    """Print how a new version of a script compares with the old one; with `verbose`, every check."""
    sheet = Sheet(console)
    sheet.headline(version_headline(proof))
    sheet.gap()
    rows = [
        (name, format.seconds(statistics.fmean(seconds)), " ".join(command))
        for name, seconds, command in (
            ("old", proof.old_seconds, proof.old),
            ("new", proof.new_seconds, proof.new),
        )
        if seconds
    ]
    if rows:
        sheet.table(rows, align="lrl", label="Step")
    _add_quality(sheet, proof.checks, proof.quality, verbose=verbose)
    for number, one in enumerate(proof.differences):
        sheet.paragraph(one, label="" if number else "Differs")
    for number, note in enumerate(proof.notes):
        sheet.paragraph(note, label="" if number else "Notes")
    sheet.print()
