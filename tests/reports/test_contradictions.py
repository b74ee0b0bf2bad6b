"""What a careful reader found on the screen that could not both be true, each on the record that showed it."""

import json
from functools import cache
from pathlib import Path

import msgspec
import pytest
from paper import Paper

from hasten import format
from hasten.measurement.diagnose import diagnose
from hasten.records import Check, Interval, Run, Tuning
from hasten.reports.page.machine import machine_over_time
from hasten.reports.page.page import PageInput, page
from hasten.reports.text import print_diagnosis
from hasten.reports.tuning import outcome, print_tuning, state_of

CASE_STUDIES = Path(__file__).parents[2] / "benchmarks" / "results" / "case_studies"


@cache
def run_of(name):
    return msgspec.convert(json.loads((CASE_STUDIES / f"{name}.json").read_bytes())["run"], Run)


@cache
def tuning_of(name):
    return msgspec.convert(json.loads((CASE_STUDIES / f"{name}.json").read_bytes())["tuning"], Tuning)


@cache
def page_of(name):
    run = run_of(name)
    return page(PageInput(run=run, diagnosis=diagnose(run), tuning=tuning_of(name)))


def card_of(name):
    paper = Paper(width=100)
    print_diagnosis(run_of(name), diagnose(run_of(name)), console=paper.console)
    return paper.text


def tuned(name):
    paper = Paper(width=100)
    print_tuning(tuning_of(name), console=paper.console, verbose=True)
    return paper.text


@pytest.mark.parametrize("name", ["xray", "classify"])
def test_1_and_2_a_step_that_waits_for_nothing_is_not_called_data_bound(name):
    diagnosis = diagnose(run_of(name))
    assert diagnosis.breakdown.phases["data_wait"] < 0.05 * diagnosis.breakdown.step_seconds
    assert diagnosis.verdict.startswith("CPU-starved: 2 loader workers and PyTorch share 2 cores; ")


def test_a_step_that_waits_is_still_called_data_bound():
    assert diagnose(run_of("feed")).breakdown.phases["data_wait"] > 0
    assert "CPU-starved" not in diagnose(run_of("feed")).verdict


@pytest.mark.parametrize("name", ["xray", "classify"])
def test_3_what_was_tried_is_not_listed_as_not_tried(name):
    tried = {trial.fix for trial in tuning_of(name).trials}
    listed = page_of(name).partition("Fixes that were not tried, and why")[2].partition("</table>")[0]
    assert tried & {"bf16", "channels_last", "fused_optimizer"}
    assert listed and [name for name in tried if f"<td>{name}</td>" in listed] == []


def test_4_a_gain_that_is_sure_does_not_begin_at_zero():
    # The low end was 4.05 ms of 210, shown as "0 to 210 ms".
    assert format.bounds(Interval(0.1076, 0.00405, 0.211)) == "4 to 210 ms"
    assert format.bounds(Interval(0.09, 0.0, 0.18)).startswith("0 to ")


@pytest.mark.parametrize("name", ["xray", "feed", "superres", "classify", "efficient"])
def test_4_no_confirmed_finding_of_a_case_study_begins_at_zero(name):
    assert "confirmed: 0 to" not in card_of(name)


def test_5_a_step_time_lies_within_its_own_interval():
    spread = Interval(1.05, 1.03, 1.07)
    breakdown = diagnose(run_of("xray")).breakdown
    diagnosis = msgspec.structs.replace(
        diagnose(run_of("xray")), breakdown=msgspec.structs.replace(breakdown, step_seconds=1.05, spread=spread)
    )
    html = page(PageInput(run=run_of("xray"), diagnosis=diagnosis))
    tile = html.partition('<span class="name">step time</span>')[2].partition("</li>")[0]
    assert "1.05 s" in tile and "1.03 to 1.07 s" in tile


@pytest.mark.parametrize("name", ["xray", "classify", "feed"])
def test_6_a_tuned_page_has_one_figure_before(name):
    head = page_of(name).partition("<header>")[2].partition("</header>")[0]
    assert format.rate(tuning_of(name).proof.baseline_rate) in head
    assert "throughput" not in head and "step time" not in head and head.count("samples/s") == 2


def test_7_a_tuned_page_says_what_was_done_and_not_what_the_proof_took_out():
    assert "bf16" in tuning_of("feed").proof.broken_by
    head = page_of("feed").partition("<h1>")[2].partition("</header>")[0]
    assert "<code>cache = auto</code>" in head and "full precision" not in head and "bf16" not in head


def test_8_what_a_proven_plan_did_not_need_is_not_called_unknown():
    proof = tuning_of("classify").proof
    assert proof.verdict == "proven" and any(check.state == "unknown" for check in proof.checks)
    assert "unknown" not in {state_of(check, proof.verdict) for check in proof.checks}
    assert "unknown:" not in tuned("classify") and "not needed:" in tuned("classify")
    doubtful = msgspec.structs.replace(proof, verdict="not proven")
    assert state_of(Check(what="band", state="unknown", text=""), doubtful.verdict) == "unknown"


def test_9_a_verdict_has_one_name_everywhere():
    for name in ("xray", "feed", "classify"):
        assert "no gain" not in tuned(name) and "unclear" not in tuned(name) + page_of(name)
    wide = next(t for t in tuning_of("feed").trials if t.speedup.high / t.speedup.low > 1.5 and t.verdict != "faster")
    assert outcome(wide, tuning_of("feed")) == "inconclusive"


def test_10_two_findings_do_not_point_at_one_line_for_different_work():
    findings = [f for f in diagnose(run_of("classify")).findings if f.kind.startswith("slow_")]
    decoding = [f for f in findings if f.kind == "slow_decode"]
    others = [f for f in findings if f.kind != "slow_decode"]
    assert decoding and all("load" in f.where.source or "open" in f.where.source for f in decoding)
    assert all("image.load()" not in f.where.source for f in others if f.where is not None)


@pytest.mark.parametrize("name", ["superres", "superres_without_cache", "classify"])
def test_memory_never_falls_to_nothing_while_a_script_trains(name):
    chart = machine_over_time(run_of(name))
    drawn = [text for text in chart.wide.split('aria-label="') if text.startswith("this script: ")]
    of_memory = [text.split(" after ")[0] for text in drawn if text.split(" after ")[0].endswith("B")]
    assert of_memory and not [text for text in of_memory if text.endswith((" B", "KiB"))]
