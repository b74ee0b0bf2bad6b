"""Every recorded run of the repository, shown as card, tuning report, page and plan: no figure contradicts another.

The figures are read back from the text that a user sees, and recomputed from the record.
"""

import html
import json
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest
from paper import Paper

from hasten.measurement.diagnose import diagnose
from hasten.records import Run, Tuning
from hasten.reports.page.page import PageInput, page
from hasten.reports.text import print_diagnosis
from hasten.reports.tuning import outcome, print_tuning, untried
from hasten.tuning.plan import plan_text

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
NUMBER = r"(-?[\d,]*\.?\d+(?:e-?\d+)?)"
UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "x": 1.0, "%": 0.01, "": 1.0}
RATIO = re.compile(rf"{NUMBER}x (?:faster )?\((?:95% CI )?{NUMBER} to {NUMBER}\)")
TIME = re.compile(rf"{NUMBER} (s|ms|µs) \((?:95% CI )?{NUMBER} to {NUMBER}\)")
COST = re.compile(rf"~{NUMBER} (s|ms|µs|ns) per step \({NUMBER}%\)\s+\[confirmed: {NUMBER} to {NUMBER} (s|ms|µs)\]")


def records_in(value):
    """(run, tuning) of each saved result in a file's JSON."""
    if isinstance(value, dict):
        if "run" in value and isinstance(value["run"], dict) and "steps" in value["run"]:
            return [(value["run"], value.get("tuning"))]
        if "trials" in value and "command" in value and "settings" in value:
            return [(None, value)]
        value = [*value.values()]
    if isinstance(value, list):
        return [pair for one in value if isinstance(one, (dict, list)) for pair in records_in(one)]
    return []


@cache
def recorded():
    """The recorded results by the names of their files."""
    found = {}
    for path in sorted(RESULTS.rglob("*.json")):
        name = path.relative_to(RESULTS).as_posix()
        if path.stat().st_size > 200 and (b'"trials"' in (text := path.read_bytes()) or b'"steps"' in text):
            for number, (run, tuning) in enumerate(records_in(json.loads(text))):
                found[f"{name} {number}"] = (
                    None if run is None else msgspec.convert(run, Run),
                    None if not tuning else msgspec.convert(tuning, Tuning),
                )
    return found


def texts_of(run, tuning):
    """What a user sees, on one line each."""
    paper = Paper(width=100)
    if run is not None:
        diagnosis = diagnose(run)
        print_diagnosis(run, diagnosis, console=paper.console, verbose=True)
        yield "page", plain(page(PageInput(run=run, diagnosis=diagnosis, tuning=tuning)))
    if tuning is not None:
        print_tuning(tuning, console=paper.console, verbose=True)
        print_tuning(tuning, console=paper.console)
        yield "plan", " ".join(plan_text(tuning).split())
    yield "card", " ".join(paper.text.split())


def plain(markup):
    visible = re.sub(r"<(style|script|svg).*?</\1>", " ", markup, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", visible)).split())


def number(text):
    return float(text.replace(",", ""))


def outside_their_intervals(text):
    """Values that do not lie between the ends that are shown beside them."""
    for pattern in (RATIO, TIME):
        for match in pattern.finditer(text):
            value, *_, low, high = (number(part) for part in match.groups() if re.fullmatch(NUMBER, part))
            if not low <= value <= high:
                yield match[0]


def wrong_costs(text, step_seconds):
    """Findings whose cost, share and interval do not fit, or that are confirmed by an interval that reaches zero."""
    for match in COST.finditer(text):
        seconds, share = number(match[1]) * UNITS[match[2]], number(match[3]) / 100
        low, high = (number(match[n]) * UNITS[match[6]] for n in (4, 5))
        if low <= 0:
            yield f"confirmed, but it reaches zero: {match[0]}"
        if not 0.95 * low <= seconds <= 1.05 * high:
            yield f"outside its interval: {match[0]}"
        if abs(seconds / step_seconds - share) > 0.02 + 0.06 * share:
            yield f"{seconds / step_seconds:.0%} of the step: {match[0]}"


@pytest.mark.parametrize("name", recorded())
def test_no_figure_that_is_shown_contradicts_another(name):
    run, tuning = recorded()[name]
    wrong = []
    for where, text in texts_of(run, tuning):
        wrong += [f"{where}: {one}" for one in outside_their_intervals(text)]
        if run is not None:
            wrong += [f"{where}: {one}" for one in wrong_costs(text, diagnose(run).breakdown.step_seconds)]
    assert wrong == []


@pytest.mark.parametrize("name", [name for name, (run, _) in recorded().items() if run is not None])
def test_phases_sum_to_the_step_and_no_finding_is_worth_more_than_it(name):
    run, _ = recorded()[name]
    diagnosis = diagnose(run)
    breakdown = diagnosis.breakdown
    total = sum(seconds for seconds in breakdown.phases.values() if seconds) + (breakdown.unaccounted or 0.0)
    assert total == pytest.approx(breakdown.step_seconds, rel=0.02)
    assert all(0 <= finding.recoverable <= breakdown.step_seconds for finding in diagnosis.findings)
    assert all(f.interval is None or f.interval.low > 0 for f in diagnosis.findings if f.confirmed_by is not None)


@pytest.mark.parametrize("name", [name for name, (_, tuning) in recorded().items() if tuning is not None])
def test_no_fix_is_both_kept_and_not_tried_or_dropped(name):
    _, tuning = recorded()[name]
    tried = {fix for trial in tuning.trials for fix in trial.added}
    assert not {one.fix for one in untried(tuning)} & (tried | {*tuning.settings})
    kept = {fix for trial in tuning.trials if outcome(trial, tuning) == "kept" for fix in trial.added}
    dropped = set(tuning.proof.broken_by) if tuning.proof is not None else set()
    assert not dropped & {*tuning.settings}
    screened = {fix for run in tuning.screening_runs for fix in run.settings}
    assert {*tuning.settings} <= kept | screened | {fix for trial in tuning.trials for fix in trial.settings}


def test_figures_that_contradict_each_other_are_seen():
    assert [*outside_their_intervals("1.9x (2.0 to 2.4), kept; 312 ms (95% CI 305 to 320)")] == ["1.9x (2.0 to 2.4)"]
    assert [*outside_their_intervals("1.1 s (1.03 to 1.07)")] == ["1.1 s (1.03 to 1.07)"]
    good = "~120 ms per step (39%) [confirmed: 110 to 131 ms]"
    assert [*wrong_costs(good, 0.312)] == []
    assert len([*wrong_costs(good.replace("110", "0"), 0.312)]) == 1
    assert len([*wrong_costs(good.replace("~120", "~190").replace("39", "61"), 0.312)]) == 1
    assert len([*wrong_costs(good.replace("39%", "69%"), 0.312)]) == 1
