"""Render the page: one HTML file that opens offline, in light and dark, on a phone and on paper.

Jinja2 fills in the page and escapes whatever comes from the user's machine. Vega-Lite draws the charts when the page is
written, so the page contains SVG and no drawing library (see docs/development/architecture.md).
"""

from __future__ import annotations

import base64
import gzip
import re
import shlex
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING

from hasten import format
from hasten.folders import OWN_SCRIPT, SESSION, is_bundled
from hasten.records import (
    BothSides,
    Diagnosis,
    Finding,
    PlannedRunRecord,
    Proof,
    Run,
    Settings,
    Suggestion,
    Trial,
    Tuning,
    encode,
)
from hasten.reports.explanations import detection_of
from hasten.reports.page.chart import Chart
from hasten.reports.page.lanes import timeline
from hasten.reports.page.machine import machine_over_time
from hasten.reports.page.steps import cost_of_a_sample, phase_rows, step_times
from hasten.reports.page.trials import forest, losses
from hasten.reports.ranks import rank_table, summary
from hasten.reports.surroundings import SANDBOXES, cache_lines, machine_words
from hasten.reports.tuning import (
    VERDICTS,
    baseline_name,
    decisive_check,
    headline,
    how_to_prove,
    outcome,
    state_of,
    taken_out,
    untried,
)
from hasten.safe_text import legible

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_CARRIED = 900_000  # bytes; a larger compressed record is left out, so that a page stays under 2 MB
MOST_KEPT = 5  # fixes in the header; all are under Details
MOST_FOLLOWED = 10  # rows in the table of runs with the plan
PACKAGE = "hasten.reports.page"
CONTROLS = dict.fromkeys(
    n for n in range(32) if chr(n) not in "\n\t"
)  # terminal control characters, which no text needs
MEASURES = {  # display names of what was measured on both sides
    "seconds a step": "step time",
    "seconds to target": "time to target",
    "seconds to target, or to the end": "time to target; the whole run where the baseline did not reach it",
}


@dataclass(frozen=True, kw_only=True)
class PageInput:
    """The records that a page shows."""

    run: Run
    diagnosis: Diagnosis
    tuning: Tuning | None = None
    after: Run | None = None  # a diagnosed run with most of the plan
    after_diagnosis: Diagnosis | None = None
    under: Settings = field(default_factory=dict)  # the settings of `after`
    followed: tuple[PlannedRunRecord, ...] = ()  # runs with a plan since then, the last first


def page(data: PageInput) -> str:
    """The page as HTML text."""
    run, diagnosis, tuning = data.run, data.diagnosis, data.tuning
    template = _environment().get_template("page.html.jinja")
    html = template.render(
        title=_short_command(run),
        command=" ".join(legible(word) for word in run.command),
        result=headline(tuning) if tuning is not None else diagnosis.verdict,
        tiles=[] if tuning is not None and tuning.settings else _tiles(data),
        pair=_pair(tuning) if tuning is not None else [],
        kept=_kept(tuning) if tuning is not None else [],
        quality=_quality(tuning.proof) if tuning is not None and tuning.proof is not None else None,
        next=_next(data),
        phases=phase_rows(diagnosis, data.after_diagnosis),
        tuned_name=_tuned_name(data),
        best_case=_best_case(diagnosis),
        charts={chart.name: chart for chart in _charts(data)},
        findings=[_finding(number, finding, run) for number, finding in enumerate(diagnosis.findings, start=1)],
        cautions=diagnosis.cautions,
        ranks=summary(run.ranks) if run.ranks is not None else "",
        rank_table=rank_table(run.ranks) if run.ranks is not None else [],
        what_ifs=[
            (change.change, format.seconds(change.step_seconds), change.because) for change in diagnosis.what_ifs
        ],
        suggestions=[_suggestion(one) for one in tuning.suggestions] if tuning is not None else [],
        how_to_prove=how_to_prove(tuning) if tuning is not None else "",
        trials=[_trial(trial, tuning) for trial in tuning.trials] if tuning is not None else [],
        screening_runs=_screening_runs(tuning),
        skipped=[(one.fix, one.state, one.reason) for one in untried(tuning)] if tuning is not None else [],
        settings=tuning.settings if tuning is not None else {},
        proof=_proof(tuning.proof) if tuning is not None and tuning.proof is not None else None,
        followed=[_followed(one, tuning) for one in data.followed[:MOST_FOLLOWED]],
        facts=_facts(data),
        notes=[*run.notes, *(tuning.notes if tuning is not None else ())],
        record=_record(data),
        made=time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.started)),
        hasten=run.hasten,
        style=_asset("colors.css") + _asset("bars.css") + _asset("style.css"),
        script=_asset("script.js"),
    )
    return html.encode("utf-8", "backslashreplace").decode("utf-8").translate(CONTROLS)


def essentials(data: PageInput) -> str:
    """The start of the page as an HTML fragment, for a notebook."""
    charts = {chart.name: chart for chart in _charts(data) if chart.name == "timeline"}
    findings = [
        _finding(number, finding, data.run) for number, finding in enumerate(data.diagnosis.findings, start=1)
    ]
    template = _environment().get_template("essentials.html.jinja")
    colors = _asset("colors.css").replace(":root", ".hasten")
    return template.render(
        verdict=data.diagnosis.verdict,
        tiles=_tiles(data),
        phases=phase_rows(data.diagnosis, None),
        charts=charts,
        findings=findings,
        colors=colors + _asset("bars.css").replace(".bars", ".hasten .bars"),
    )


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["marked"] = _marked
    return environment


def _shown(value: object) -> object:
    """A value as a template shows it: our own markup unchanged, any other text without control characters."""
    return legible(value, keep="\n\t") if type(value) is str else value


def _marked(text: str) -> str:
    """A text of ours in which `words` are code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(legible(text, keep="\n\t")))))


def _asset(name: str) -> str:
    return resources.files(PACKAGE).joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _tuned_name(data: PageInput) -> str:
    """The name of the run with the plan; one with a part of the plan is named by its settings."""
    if data.tuning is None or not data.under or data.under == data.tuning.settings:
        return "tuned"
    return f"with {format.settings(data.under)}"


def _charts(data: PageInput) -> Iterable[Chart]:
    run, tuning = data.run, data.tuning
    found = [
        timeline(run.timeline, data.after.timeline if data.after is not None else None, tuned=_tuned_name(data)),
        step_times(run),
        machine_over_time(run),
        cost_of_a_sample(run),
        *([forest(tuning), losses(tuning)] if tuning is not None else []),
    ]
    return [chart for chart in found if chart is not None]


def _short_command(run: Run) -> str:
    """The command without the folders of the script."""
    words = [legible(word) for word in run.command]
    script = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
    if script is not None:
        words[script] = PurePath(words[script]).name
    return " ".join(words) or run.id


def _pair(tuning: Tuning) -> list[tuple[str, str, float]]:
    """Before and after: name, throughput, length of the bar in percent."""
    proof = tuning.proof
    if proof is None or not tuning.settings or not proof.baseline_rate or not proof.plan_rate:
        return []
    fastest = max(proof.baseline_rate, proof.plan_rate)
    sides = (("baseline", proof.baseline_rate), ("tuned", proof.plan_rate))
    return [(name, format.rate(rate), round(100 * rate / fastest, 1)) for name, rate in sides]


def _kept(tuning: Tuning) -> list[tuple[str, str]]:
    """The fixes that were kept, with their gains."""
    trials = [trial for trial in tuning.trials if outcome(trial, tuning) == "kept"]
    return [(format.added(trial.added), format.speedup(trial.speedup, unknown="")) for trial in trials[:MOST_KEPT]]


def _quality(proof: Proof) -> tuple[str, str, str]:
    """Style, verdict, and the check that says most."""
    check = decisive_check(proof.checks, proof.verdict)
    return proof.verdict.replace(" ", "-"), VERDICTS[proof.verdict], check.text if check is not None else ""


def _next(data: PageInput) -> str:
    """The command to run next."""
    if data.run.command[:1] == (SESSION,):
        return ""
    if is_bundled(data.run.command):
        return OWN_SCRIPT.partition("  ")[0]
    words = shlex.join(map(legible, data.run.command))
    if data.tuning is None:
        return f"hasten tune {words}"
    return f"hasten run {words}" if data.tuning.settings else ""


def _best_case(diagnosis: Diagnosis) -> str:
    """What the step would take without loading, and without copies."""
    step, ceiling = diagnosis.breakdown.step_seconds, diagnosis.ceiling
    known = [
        f"{condition}: {format.seconds(seconds)} per step ({format.ratio(step / seconds)})"
        for condition, seconds in (
            ("With instant data loading", ceiling.free_batches),
            ("with instant copies too", ceiling.free_copies),
        )
        if seconds is not None and seconds > 0
    ]
    return ", ".join(known)


def _tiles(data: PageInput) -> list[tuple[str, str, str]]:
    """Tiles of name, figure and note, of a script without a plan."""
    breakdown, ceiling = data.diagnosis.breakdown, data.diagnosis.ceiling
    step = format.seconds(breakdown.step_seconds)
    spread = format.bounds(breakdown.spread) if breakdown.spread is not None else ""
    if breakdown.spread is not None and spread:
        step = format.middle(breakdown.spread)
    rate = format.rate(breakdown.samples_per_second)
    tiles = [
        ("step time", step, f"95% CI {spread}" if spread else ""),
        ("throughput", rate, format.count(breakdown.num_steps, noun="step")),
    ]
    if ceiling.free_batches is not None:
        gain = format.ratio(breakdown.step_seconds / ceiling.free_batches) if ceiling.free_batches > 0 else ""
        tiles.append(("with instant data loading", format.seconds(ceiling.free_batches), gain))
    return tiles


def _finding(number: int, finding: Finding, run: Run) -> dict[str, object]:
    return {
        "number": number,
        "kind": finding.kind,
        "title": finding.title,
        "recoverable": format.seconds(finding.recoverable),
        "evidence": _evidence(finding),
        "interval": format.bounds(finding.interval) if finding.interval is not None else "",
        "because": finding.because,
        "where": legible(format.place(finding.where, directory=run.directory)) if finding.where is not None else "",
        "source": legible(finding.where.source) if finding.where is not None else "",
        "remedy": finding.remedy,
        "how": detection_of(finding.kind),
    }


def _evidence(finding: Finding) -> str:
    """By what a finding is known."""
    if finding.confirmed_by == "replay":
        return "confirmed as a part of data loading, by another run without any; its share is that of its stages"
    return (
        "confirmed by another run with only this changed" if finding.confirmed_by else "estimated from this run only"
    )


def _suggestion(one: Suggestion) -> dict[str, str]:
    return {
        "title": one.title,
        "where": legible(f"{one.file}:{one.line}"),
        "source": legible(one.source),
        "example": one.example,
        "gain": format.seconds(one.recoverable),
    }


def _trial(trial: Trial, tuning: Tuning) -> dict[str, str]:
    return {
        "fix": format.added(trial.added),
        "speedup": format.ratio_interval(trial.speedup, unknown=""),
        "verdict": outcome(trial, tuning),
        "pairs": str(len(trial.baseline_seconds) or ""),
        "expected": format.seconds(trial.predicted, unknown=""),
        "took": format.seconds(trial.seconds, rough=True),
        "note": trial.note,
    }


def _screening_runs(tuning: Tuning | None) -> list[tuple[str, str, str]]:
    """Rows of recipe, time to target and final metric."""
    found: list[tuple[str, str, str]] = []
    for screened in tuning.screening_runs if tuning is not None else ():
        name = format.settings(screened.settings, none="baseline")
        reached = format.seconds(screened.reached, unknown="never")
        found.append(
            (
                name,
                reached if not screened.note else screened.note,
                "" if screened.metric is None else f"{screened.metric:g}",
            )
        )
    return found


def _proof(proof: Proof) -> dict[str, object]:
    return {
        "verdict": VERDICTS[proof.verdict],
        "style": proof.verdict.replace(" ", "-"),
        "guarantee": proof.guarantee,
        "speedup": format.speedup(proof.speedup),
        "measured": [_both(sides) for sides in proof.measured],
        "checks": [(check.what, state_of(check, proof.verdict), check.text) for check in proof.checks],
        "dropped": list(taken_out(proof).items()),
    }


def _both(sides: BothSides) -> tuple[str, ...]:
    """A row: measure, number of pairs, mean and standard deviation of each side, difference with its interval."""
    shown = format.seconds if sides.what.startswith("seconds") else "{:.3g}".format
    what = MEASURES.get(sides.what, sides.what)
    if sides.reference_settings:
        what = f"{what}, compared with {baseline_name(sides.reference_settings)}"
    means = [
        shown(statistics.fmean(values)) + (f" ± {shown(statistics.stdev(values))}" if len(values) > 1 else "")
        for values in (sides.baseline, sides.plan)
    ]
    found = sides.difference
    if found is None:
        apart = ""
    elif shown is format.seconds:
        apart = format.interval(found)
    else:
        apart = f"{shown(found.value)} ({shown(found.low)} to {shown(found.high)})"
    return what, str(len(sides.plan)), *means, apart


def _followed(one: PlannedRunRecord, tuning: Tuning | None) -> tuple[str, ...]:
    """A row: end, steps, rate, settings that differ from the plan."""
    plan = tuning.settings if tuning is not None else {}
    names = [name for name in {**plan, **one.settings} if plan.get(name) != one.settings.get(name)]
    ended = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.ended))
    changed = format.settings({name: one.settings.get(name, "off") for name in names})
    return ended, format.count(one.num_steps), format.rate(one.samples_per_second), changed


def _facts(data: PageInput) -> list[tuple[str, str]]:
    """Rows about the machine and the measurement."""
    run = data.run
    facts = [("Machine", ", ".join(machine_words(run))), ("Command", " ".join(map(legible, run.command)))]
    facts += [("Folder", legible(run.directory)), ("Steps", format.count(len(run.steps)))]
    if run.sandbox is not None:
        facts.append(("Sandbox", SANDBOXES[run.sandbox]))
    if run.overhead is not None:
        taken = run.overhead.marks_per_step * run.overhead.seconds_per_mark
        facts.append(
            ("Overhead", f"{format.seconds(taken)} per instrumented step, estimated from the number of marks")
        )
    return facts + [("Cache", line) for line in cache_lines(data.after or run, data.diagnosis)]


def _record(data: PageInput) -> dict[str, str]:
    """The compressed record, for download; empty where it is too large for a page."""
    values: dict[str, object] = {"run": data.run, "diagnosis": data.diagnosis, "tuning": data.tuning}
    packed = gzip.compress(encode(values), compresslevel=6, mtime=0)
    if len(packed) > MOST_CARRIED:
        return {"name": "", "data": ""}
    return {"name": f"hasten-{data.run.id}.json.gz", "data": base64.b64encode(packed).decode("ascii")}
