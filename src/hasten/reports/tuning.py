"""What a search for a plan found, on the terminal.

In: a Tuning. Out: a table of trials, the plan, its proof, and what was left alone. Refuses to conclude.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hasten import format
from hasten.records import Check, Followed, Interval, Proof, Settings, Skipped, Trial, Tuning
from hasten.reports.sheet import Sheet

NARROW = 1.2  # high over low end of an interval
_STATES = {"proven": "green", "not proven": "yellow", "broken": "red"}


def print_tuning(
    tuning: Tuning, *, console: Console, plan: str = "", record: str = "", followed: Sequence[Followed] = ()
) -> None:
    """Print a search; `plan` is the plan's file, `record` where the search is kept, `followed` runs since, the last first."""
    sheet = Sheet(console)
    sheet.headline(headline(tuning))
    sheet.gap()
    _add_rates(sheet, tuning)
    _add_trials(sheet, tuning)
    _add_heats(sheet, tuning)
    _add_proof(sheet, tuning)
    _add_suggestions(sheet, tuning)
    if (trial := suggested(tuning)) is not None:
        sheet.paragraph(SUGGESTION, f" {format.ratio_interval(trial.speedup)} as fast with it", label="Suggested")
        sheet.paragraph(pure_line(str(trial.value)), lead="  ")
    _add_followed(sheet, followed)
    if late := left_untried(tuning):
        sheet.paragraph(
            ", ".join(one.fix for one in late), ": no time was left; --budget gives more", label="Not tried"
        )
    for number, note in enumerate(tuning.notes):
        sheet.paragraph(note, label="" if number else "Notes")
    if where := cache_line(tuning):
        sheet.paragraph(where, label="Cache")
    if plan:
        sheet.paragraph(plan, label="Plan")
    if record:
        sheet.paragraph(f"{record} (as a page: hasten report --html FILE)", label="Record")
    sheet.print()


def _add_followed(sheet: Sheet, followed: Sequence[Followed]) -> None:
    if not followed:
        return
    last, runs = followed[0], format.count(len(followed), noun="run")
    rate, steps = format.rate(last.samples_per_second), format.count(last.num_steps, noun="step")
    gain = f", {format.ratio(last.samples_per_second / last.baseline_rate)} as fast" if last.baseline_rate else ""
    sheet.paragraph(f"{runs} under a plan; the last at {rate}{gain}, over {steps}", label="Since")


def headline(tuning: Tuning) -> str:
    """The result in one sentence."""
    took = format.seconds(tuning.seconds, rough=True)
    if not tuning.settings:
        return f"The plan is empty: {why_empty(tuning)} (searched for {took})."
    proof = tuning.proof
    if proof is None:
        return f"Not proven: the search ended after {took}, before its plan was compared as a whole."
    speed = format.ratio_interval(proof.speedup)
    if proof.sooner is not None:
        sooner = format.ratio_interval(proof.sooner)
        return f"Its target reached {sooner} as soon, in whole runs: {proof.verdict} ({proof.guarantee}), in {took}."
    if proof.verdict == "proven":
        return f"{speed} as fast, and it trains as well: proven ({proof.guarantee}), in {took}."
    unknown = next((check for check in proof.checks if check.state == "unknown" and not check.is_optional), None)
    if unknown is not None and unknown.what == "speed":
        return f"{speed} as fast; {unknown.text}: not proven, in {took}."
    return f"{speed} as fast; that it trains as well is {proof.verdict}, in {took}."


def why_empty(tuning: Tuning) -> str:
    """Why a search has kept nothing."""
    if tuning.proof is not None and tuning.proof.verdict == "broken":
        return "; ".join(f"{name} was taken out, {why}" for name, why in taken_out(tuning.proof).items())
    if tuning.proof is not None:
        return "as a whole it was not faster"
    tried = f"of {format.count(len(tuning.trials), noun='trial')} none was faster" if tuning.trials else ""
    late = ", ".join(one.fix for one in left_untried(tuning))
    if late:
        return "; ".join(filter(None, [tried, f"no time was left to try {late}, --budget gives more"]))
    return tried or "no fix is expected to save 2% of the step"


SUGGESTION = (
    "if these results depend on nothing but the arguments and the files they name, add to [cache] of hasten.toml:"
)


def suggested(tuning: Tuning) -> Trial | None:
    """The trial of functions that the user may vouch for, if it was faster; a search never switches them on."""
    trials = [
        one for one in tuning.trials if one.fix == "pure" and one.verdict == "faster" and one.speedup is not None
    ]
    return trials[-1] if trials else None


def pure_line(functions: str) -> str:
    """What to write into a plan's section [cache]."""
    names = ", ".join(f'"{name}"' for name in functions.split(","))
    return f"pure = [{names}]"


def cache_line(tuning: Tuning) -> str:
    """What the plan's cache holds where: "RAM holds 33% of 3.1 GB, the disk the rest"; empty without a cache."""
    need, on = tuning.cache, [name for name in ("cache", "disk_cache") if name in tuning.settings]
    if need is None or not on:
        return ""
    if tuning.settings.get("cache", "auto") != "auto":  # the size that the user gave is in the plan
        return f"a full cache takes {format.size(need.total_bytes)}"
    in_memory = f"RAM holds {format.share(need.fits_share)} of {format.size(need.total_bytes)}"
    if "cache" not in on:
        return f"the disk holds {format.size(need.total_bytes)}"
    return f"{in_memory}, the disk the rest" if "disk_cache" in on else in_memory


def beside(settings: Settings) -> str:
    """What the plan's figures stand beside: the script, perhaps under what makes it draw the plan's random numbers."""
    return f"the script with {format.settings(settings)}" if settings else "the script"


def taken_out(proof: Proof) -> dict[str, str]:
    """Fixes that the proof took out, and why."""
    reasons = proof.broken_because or ("it changed what is learnt",) * len(proof.broken_by)
    return dict(zip(proof.broken_by, reasons))


def _add_rates(sheet: Sheet, tuning: Tuning) -> None:
    proof = tuning.proof
    if proof is None or proof.baseline_rate is None or proof.plan_rate is None:
        return
    kept = ", from the second epoch on" if {"cache", "disk_cache"} & {*tuning.settings} else ""
    speed = f"{format.ratio_interval(proof.speedup)}{kept}"
    rows = [("before", format.rate(proof.baseline_rate), ""), ("after", format.rate(proof.plan_rate), speed)]
    sheet.table(rows, align="lrl", label="Speed")


def _add_trials(sheet: Sheet, tuning: Tuning) -> None:
    for number, trial in enumerate(tuning.trials):
        label = "" if number else "Trials"
        sheet.paragraph(trial_line(trial, tuning), label=label)


def outcome(trial: Trial, tuning: Tuning) -> str:
    """What came of a trial, in the same words everywhere: kept, faster, slower, no difference, inconclusive, failed."""
    if trial.verdict == "faster" and trial.fix == "pure":
        return "suggested"
    if trial.verdict == "faster":
        return "kept" if any(name in tuning.settings for name in trial.added) else "faster, not kept"
    if trial.verdict == "no difference" and trial.speedup is not None and not _is_narrow(trial.speedup):
        return "inconclusive"
    return "inconclusive" if trial.verdict == "inconclusive" else trial.verdict


def _is_narrow(speedup: Interval) -> bool:
    """Whether an interval is narrow enough to speak of no difference."""
    return speedup.high / max(speedup.low, 1e-9) < NARROW


def state_of(check: Check, proof: Proof) -> str:
    """What a check came to; what a proven plan did not need is not called unknown."""
    return "not needed" if check.state == "unknown" and proof.verdict == "proven" else check.state


def left_untried(tuning: Tuning) -> list[Skipped]:
    """Fixes that apply and that there was no time to try."""
    return [one for one in untried(tuning) if one.state == "no time"]


def untried(tuning: Tuning) -> list[Skipped]:
    """Fixes without a trial: one that was tried later in the search is not among them."""
    tried = {name for trial in tuning.trials for name in trial.added} | {*tuning.settings}
    return [one for one in tuning.skipped if one.fix not in tried]


def trial_line(trial: Trial, tuning: Tuning) -> str:
    """A trial in one line: "bf16: 2.06x (1.68 to 2.52), kept, 3 pairs"."""
    speed = f"{format.ratio_interval(trial.speedup)}, " if trial.speedup is not None else ""
    pairs = f", {len(trial.baseline_seconds)} pairs" if trial.baseline_seconds else ""
    return f"{format.added(trial.added)}: {speed}{outcome(trial, tuning)}{pairs}" + (
        f"; {trial.note}" if trial.note else ""
    )


def _add_heats(sheet: Sheet, tuning: Tuning) -> None:
    """Whole runs under recipes: when each reached the target, and where it ended."""
    for number, heat in enumerate(tuning.heats):
        shown = format.settings(heat.settings, none="the recipe as it is")
        if heat.metric is None:
            told = f"failed; {heat.note}"
        elif heat.reached is None:
            told = f"never, {heat.metric:g} at the end"
        else:
            told = f"after {format.seconds(heat.reached)}, {heat.metric:g} at the end"
        sheet.paragraph(shown, f": {told}", label="" if number else "Target")


def _add_proof(sheet: Sheet, tuning: Tuning) -> None:
    proof: Proof | None = tuning.proof
    if proof is None:
        return
    sheet.paragraph((proof.verdict, _STATES[proof.verdict]), label="Proof")
    for check in proof.checks:
        sheet.paragraph(f"{state_of(check, proof)}: {check.text}", lead="  ")
    if proof.broken_by:
        for name, reason in taken_out(proof).items():
            sheet.paragraph(f"taken out: {name}; {reason}", lead="  ")


def _add_suggestions(sheet: Sheet, tuning: Tuning) -> None:
    for number, one in enumerate(tuning.suggestions):
        gain = format.seconds(one.recoverable)
        sheet.paragraph(
            f"{one.title}: about {gain} a step. Needs a change in your source", label="" if number else "Source"
        )
        sheet.paragraph(f"{one.file}:{one.line}", ("  " + one.source, "dim"), lead="  ")
        for line in one.example.splitlines():
            sheet.paragraph((line, "green"), lead="  ")
