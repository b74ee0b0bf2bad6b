"""The page: one HTML file that opens offline, in light and dark, on a phone and on paper.

In: a Run with its Diagnosis, perhaps a search and the runs diagnosed in it. Out: HTML. Refuses to conclude: every sentence
and figure stands in the records.

Jinja2 fills the page, and escapes whatever comes from the user's machine; Vega-Lite draws the charts, at the time the page
is written, so that it carries drawings and no drawing library (see docs/architecture.md).
"""

from __future__ import annotations

import base64
import gzip
import json
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
    Followed,
    Proof,
    Run,
    Settings,
    Suggestion,
    Trial,
    Tuning,
    encode,
)
from hasten.reports.page.chart import Chart
from hasten.reports.page.lanes import timeline
from hasten.reports.page.loader import cost_of_a_sample
from hasten.reports.page.machine import machine_over_time
from hasten.reports.page.steps import course, where_it_goes
from hasten.reports.page.trials import forest, losses
from hasten.reports.surroundings import SANDBOXES, cache_lines, machine_words
from hasten.reports.tuning import beside, headline, outcome, state_of, taken_out, untried
from hasten.safe_text import legible

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_CARRIED = 900_000  # bytes of a record, packed, that a page carries with it: a page is to stay under 2 MB
MOST_FOLLOWED = 10  # runs under a plan, in a table
ROOM = "hasten.reports.page"
CONTROLS = dict.fromkeys(n for n in range(32) if chr(n) not in "\n\t")  # of a terminal: no text has them
WHAT = {  # of what both sides were measured by
    "seconds a step": "a step",
    "seconds to target": "target reached after",
    "seconds to target, or to the end": "target reached after; where the script never came so far, all of its run",
}


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a page is made of."""

    run: Run
    diagnosis: Diagnosis
    tuning: Tuning | None = None
    after: Run | None = None  # the run under most of the plan, where it was diagnosed
    under: Settings = field(default_factory=dict)  # it had
    followed: tuple[Followed, ...] = ()  # runs under a plan since, the last first


def page(told: Told) -> str:
    """The page as text."""
    run, diagnosis, tuning = told.run, told.diagnosis, told.tuning
    template = _environment().get_template("page.html.jinja")
    html = template.render(
        title=" ".join(legible(word) for word in run.command) or run.id,
        verdict=_subtitle(told),
        searched=headline(tuning) if tuning is not None else "",
        tiles=_tiles(told),
        charts={chart.name: chart for chart in _charts(told)},
        findings=[_finding(number, finding, run) for number, finding in enumerate(diagnosis.findings, start=1)],
        what_ifs=[
            (change.change, format.seconds(change.step_seconds), change.because) for change in diagnosis.what_ifs
        ],
        suggestions=[_suggestion(one) for one in tuning.suggestions] if tuning is not None else [],
        trials=[_trial(trial, tuning) for trial in tuning.trials] if tuning is not None else [],
        heats=_heats(tuning),
        skipped=[(one.fix, one.state, one.reason) for one in untried(tuning)] if tuning is not None else [],
        settings=tuning.settings if tuning is not None else {},
        proof=_proof(tuning.proof) if tuning is not None and tuning.proof is not None else None,
        followed=[_followed(one, tuning) for one in told.followed[:MOST_FOLLOWED]],
        facts=_facts(told),
        notes=[*run.notes, *(tuning.notes if tuning is not None else ())],
        record=_record(told),
        made=time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.started)),
        hasten=run.hasten,
        style=_asset("colours.css") + _asset("style.css"),
        script=_asset("script.js"),
    )
    return html.encode("utf-8", "backslashreplace").decode("utf-8").translate(CONTROLS)


def essentials(told: Told) -> str:
    """The page's first answers as a fragment, for a notebook."""
    charts = {chart.name: chart for chart in _charts(told) if chart.name in ("step", "timeline")}
    findings = [
        _finding(number, finding, told.run) for number, finding in enumerate(told.diagnosis.findings, start=1)
    ]
    template = _environment().get_template("essentials.html.jinja")
    colours = _asset("colours.css").replace(":root", ".hasten")
    return template.render(
        verdict=told.diagnosis.verdict, tiles=_tiles(told), charts=charts, findings=findings, colours=colours
    )


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader

    return Environment(
        loader=FunctionLoader(_asset), autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )


def _shown(value: object) -> object:
    """What a template shows of a value: markup of ours as it is, any other text without control characters."""
    return legible(value, keep="\n\t") if type(value) is str else value


def _asset(name: str) -> str:
    return resources.files(ROOM).joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _under(told: Told) -> str:
    """What the run under the plan is called: one that had a part of it is named by that."""
    if told.tuning is None or not told.under or told.under == told.tuning.settings:
        return "after"
    return f"under {format.settings(told.under)}"


def _charts(told: Told) -> Iterable[Chart]:
    run, tuning = told.run, told.tuning
    found = [
        where_it_goes(run, told.diagnosis),
        timeline(run.timeline, told.after.timeline if told.after is not None else None, under=_under(told)),
        course(run),
        machine_over_time(run),
        cost_of_a_sample(run),
        *([forest(tuning), losses(tuning)] if tuning is not None else []),
    ]
    return [chart for chart in found if chart is not None]


def _subtitle(told: Told) -> str:
    """What was done, under a search that found a plan; what is wrong, otherwise."""
    tuning = told.tuning
    if tuning is None or not tuning.settings:
        return told.diagnosis.verdict
    return f"Applied: {format.settings(tuning.settings)}."


def _tiles(told: Told) -> list[tuple[str, str, str]]:
    """What it is, its figure, and what goes with it."""
    breakdown, ceiling = told.diagnosis.breakdown, told.diagnosis.ceiling
    proof = told.tuning.proof if told.tuning is not None else None
    tiles: list[tuple[str, str, str]] = []
    if proof is None or proof.baseline_rate is None:  # else the proof's own figures, both sides measured in turns
        step = format.seconds(breakdown.step_seconds)
        spread = format.bounds(breakdown.spread) if breakdown.spread is not None else ""
        if breakdown.spread is not None and spread:
            step = format.middle(breakdown.spread)
        rate = format.rate(breakdown.samples_per_second)
        tiles.append(("step time", step, f"{spread} at 95%" if spread else ""))
        tiles.append(("throughput", rate, format.count(breakdown.num_steps, noun="step")))
    if ceiling.free_batches is not None:
        gain = format.ratio(breakdown.step_seconds / ceiling.free_batches) if ceiling.free_batches > 0 else ""
        tiles.append(("with batches for free", format.seconds(ceiling.free_batches), gain))
    if proof is not None and proof.baseline_rate is not None and proof.plan_rate is not None:
        tiles.append(("before", format.rate(proof.baseline_rate), "the script as it is"))
        tiles.append(("after", format.rate(proof.plan_rate), format.ratio_interval(proof.speedup)))
    if proof is not None and proof.sooner is not None:
        tiles.append(("its target reached", f"{format.ratio_interval(proof.sooner)}", "times as soon, in whole runs"))
    return tiles


def _finding(number: int, finding: Finding, run: Run) -> dict[str, object]:
    return {
        "number": number,
        "kind": finding.kind,
        "title": finding.title,
        "recoverable": format.seconds(finding.recoverable),
        "known": f"confirmed by {finding.confirmed_by}" if finding.confirmed_by else "estimated from this run alone",
        "interval": format.bounds(finding.interval) if finding.interval is not None else "",
        "because": finding.because,
        "where": legible(format.place(finding.where, directory=run.directory)) if finding.where is not None else "",
        "source": legible(finding.where.source) if finding.where is not None else "",
        "remedy": finding.remedy,
        "how": json.loads(_asset("known.json")).get(finding.kind, ""),
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
        "promised": format.seconds(trial.predicted, unknown=""),
        "took": format.seconds(trial.seconds, rough=True),
        "note": trial.note,
    }


def _heats(tuning: Tuning | None) -> list[tuple[str, str, str]]:
    """A recipe, when it reached the target, and its metric at the end."""
    found: list[tuple[str, str, str]] = []
    for heat in tuning.heats if tuning is not None else ():
        name = format.settings(heat.settings, none="as it is")
        reached = format.seconds(heat.reached, unknown="never")
        found.append(
            (name, reached if not heat.note else heat.note, "" if heat.metric is None else f"{heat.metric:g}")
        )
    return found


def _proof(proof: Proof) -> dict[str, object]:
    return {
        "verdict": proof.verdict,
        "guarantee": proof.guarantee,
        "speedup": format.ratio_interval(proof.speedup),
        "measured": [_both(sides) for sides in proof.measured],
        "checks": [(check.what, state_of(check, proof), check.text) for check in proof.checks],
        "taken_out": list(taken_out(proof).items()),
    }


def _both(sides: BothSides) -> tuple[str, ...]:
    """What, how often, then mean and standard deviation of each side, and their difference with its interval."""
    shown = format.seconds if sides.what.startswith("seconds") else "{:.3g}".format
    what = WHAT.get(sides.what, sides.what)
    if sides.beside:
        what = f"{what}, beside {beside(sides.beside)}"
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


def _followed(one: Followed, tuning: Tuning | None) -> tuple[str, ...]:
    """When it ended, its steps, its rate, that rate over the script's by itself, and what was set otherwise."""
    plan = tuning.settings if tuning is not None else {}
    names = [name for name in {**plan, **one.settings} if plan.get(name) != one.settings.get(name)]
    ended = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.ended))
    gain = format.ratio(one.samples_per_second / one.baseline_rate) if one.baseline_rate else ""
    changed = format.settings({name: one.settings.get(name, "off") for name in names})
    return ended, format.count(one.num_steps), format.rate(one.samples_per_second), gain, changed


def _facts(told: Told) -> list[tuple[str, str]]:
    """The machine and what was measured."""
    run = told.run
    facts = [("Machine", ", ".join(machine_words(run))), ("Command", " ".join(map(legible, run.command)))]
    facts += [("Folder", legible(run.directory)), ("Steps", format.count(len(run.steps)))]
    if run.sandbox is not None:
        facts.append(("Sandbox", SANDBOXES[run.sandbox]))
    if run.overhead is not None:
        taken = run.overhead.marks_per_step * run.overhead.seconds_per_mark
        facts.append(("Measuring cost", f"{format.seconds(taken)} a marked step, by the count"))
    return facts + [("Cache", line) for line in cache_lines(told.after or run, told.diagnosis)]


def _record(told: Told) -> dict[str, str]:
    """The record to download, packed; or nothing, where it is too large for a page."""
    values: dict[str, object] = {"run": told.run, "diagnosis": told.diagnosis, "tuning": told.tuning}
    packed = gzip.compress(encode(values), compresslevel=6, mtime=0)
    if len(packed) > MOST_CARRIED:
        return {"name": "", "data": ""}
    return {"name": f"hasten-{told.run.id}.json.gz", "data": base64.b64encode(packed).decode("ascii")}
