"""Render the page: one HTML file that opens offline, in light and dark, on a phone and on paper.

Jinja2 fills in the page and escapes whatever comes from the user's machine. Vega-Lite draws the charts when the page is
written, so the page contains SVG and no drawing library (see docs/development/architecture.md).
"""

from __future__ import annotations

import base64
import gzip
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

from hasten import format
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
from hasten.reports.page.steps import cost_of_a_sample, step_times, where_it_goes
from hasten.reports.page.trials import forest, losses
from hasten.reports.surroundings import SANDBOXES, cache_lines, machine_words
from hasten.reports.tuning import (
    VERDICTS,
    baseline_name,
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
    under: Settings = field(default_factory=dict)  # the settings of `after`
    followed: tuple[PlannedRunRecord, ...] = ()  # runs with a plan since then, the last first


def page(data: PageInput) -> str:
    """The page as HTML text."""
    run, diagnosis, tuning = data.run, data.diagnosis, data.tuning
    template = _environment().get_template("page.html.jinja")
    html = template.render(
        title=" ".join(legible(word) for word in run.command) or run.id,
        verdict=_subtitle(data),
        result=headline(tuning) if tuning is not None else "",
        tiles=_tiles(data),
        charts={chart.name: chart for chart in _charts(data)},
        findings=[_finding(number, finding, run) for number, finding in enumerate(diagnosis.findings, start=1)],
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
        style=_asset("colors.css") + _asset("style.css"),
        script=_asset("script.js"),
    )
    return html.encode("utf-8", "backslashreplace").decode("utf-8").translate(CONTROLS)


def essentials(data: PageInput) -> str:
    """The start of the page as an HTML fragment, for a notebook."""
    charts = {chart.name: chart for chart in _charts(data) if chart.name in ("step", "timeline")}
    findings = [
        _finding(number, finding, data.run) for number, finding in enumerate(data.diagnosis.findings, start=1)
    ]
    template = _environment().get_template("essentials.html.jinja")
    colors = _asset("colors.css").replace(":root", ".hasten")
    return template.render(
        verdict=data.diagnosis.verdict, tiles=_tiles(data), charts=charts, findings=findings, colors=colors
    )


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: object) -> object:
    """A value as a template shows it: our own markup unchanged, any other text without control characters."""
    return legible(value, keep="\n\t") if type(value) is str else value


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
        where_it_goes(run, data.diagnosis),
        timeline(run.timeline, data.after.timeline if data.after is not None else None, tuned=_tuned_name(data)),
        step_times(run),
        machine_over_time(run),
        cost_of_a_sample(run),
        *([forest(tuning), losses(tuning)] if tuning is not None else []),
    ]
    return [chart for chart in found if chart is not None]


def _subtitle(data: PageInput) -> str:
    """What was applied, if there is a plan; otherwise the verdict."""
    tuning = data.tuning
    if tuning is None or not tuning.settings:
        return data.diagnosis.verdict
    return f"Applied: {format.settings(tuning.settings)}."


def _tiles(data: PageInput) -> list[tuple[str, str, str]]:
    """Tiles of name, figure and note."""
    breakdown, ceiling = data.diagnosis.breakdown, data.diagnosis.ceiling
    proof = data.tuning.proof if data.tuning is not None else None
    tiles: list[tuple[str, str, str]] = []
    if proof is None or proof.baseline_rate is None:  # else the quality check's figures, measured alternately
        step = format.seconds(breakdown.step_seconds)
        spread = format.bounds(breakdown.spread) if breakdown.spread is not None else ""
        if breakdown.spread is not None and spread:
            step = format.middle(breakdown.spread)
        rate = format.rate(breakdown.samples_per_second)
        tiles.append(("step time", step, f"95% CI {spread}" if spread else ""))
        tiles.append(("throughput", rate, format.count(breakdown.num_steps, noun="step")))
    if ceiling.free_batches is not None:
        gain = format.ratio(breakdown.step_seconds / ceiling.free_batches) if ceiling.free_batches > 0 else ""
        tiles.append(("with instant data loading", format.seconds(ceiling.free_batches), gain))
    if proof is not None and proof.baseline_rate is not None and proof.plan_rate is not None:
        tiles.append(("baseline", format.rate(proof.baseline_rate), "the unmodified script"))
        tiles.append(("tuned", format.rate(proof.plan_rate), format.speedup(proof.speedup)))
    if proof is not None and proof.target_speedup is not None:
        tiles.append(("target reached sooner", format.ratio_interval(proof.target_speedup), "in whole runs"))
    return tiles


def _finding(number: int, finding: Finding, run: Run) -> dict[str, object]:
    return {
        "number": number,
        "kind": finding.kind,
        "title": finding.title,
        "recoverable": format.seconds(finding.recoverable),
        "evidence": f"confirmed by {finding.confirmed_by}"
        if finding.confirmed_by
        else "estimated from this run only",
        "interval": format.bounds(finding.interval) if finding.interval is not None else "",
        "because": finding.because,
        "where": legible(format.place(finding.where, directory=run.directory)) if finding.where is not None else "",
        "source": legible(finding.where.source) if finding.where is not None else "",
        "remedy": finding.remedy,
        "how": detection_of(finding.kind),
    }


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
        "checks": [(check.what, state_of(check, proof), check.text) for check in proof.checks],
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
    """A row: end, steps, rate, rate relative to the baseline, settings that differ from the plan."""
    plan = tuning.settings if tuning is not None else {}
    names = [name for name in {**plan, **one.settings} if plan.get(name) != one.settings.get(name)]
    ended = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.ended))
    gain = format.ratio(one.samples_per_second / one.baseline_rate) if one.baseline_rate else ""
    changed = format.settings({name: one.settings.get(name, "off") for name in names})
    return ended, format.count(one.num_steps), format.rate(one.samples_per_second), gain, changed


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
