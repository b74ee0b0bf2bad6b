"""Whole runs: what their metric says, and how soon a target is reached."""

import random
import re
import sys

import pytest

from hasten.launch.side import Bench, Output, SideError, _in_characters
from hasten.records import ScreeningRun
from hasten.tuning import metric, quality
from hasten.tuning.evaluator import Evaluator
from hasten.tuning.metric import (
    SEEDS,
    Metric,
    WholeRun,
    WholeRuns,
    check_whole_runs,
    metric_holds,
    screening_runs,
    soonest,
)
from hasten.tuning.prove import _both

PATTERN = re.compile(r"accuracy ([0-9.]+)")


class Runs:
    """A bench whose whole runs print an accuracy each second, up to what the settings give."""

    def __init__(self, pace, *, end=10):
        self.pace, self.end, self.launched = pace, end, []

    def run_whole(self, *, spec, environment):
        settings = {fix.name: fix.value for fix in spec.fixes}
        self.launched.append(settings)
        step = self.pace[next(iter(settings), "")]
        lines = [
            f"accuracy {min(0.99, step * n + 0.001 * (spec.shift // 1000)):.4f}\n" for n in range(1, self.end + 1)
        ]
        grown = [(float(n + 1), sum(map(len, lines[: n + 1]))) for n in range(len(lines))]
        return Output(text="".join(lines), grown=grown, seconds=float(self.end))

    folder = None


@pytest.fixture
def judged(monkeypatch):
    """Whole runs of a evaluator whose script and plan take these steps of accuracy a second."""
    monkeypatch.setattr("hasten.tuning.metric.variables_of", lambda settings, scratch: {})

    def evaluator(pace, *, left=1e6, reference_settings=None, **settings):
        bench = Runs(pace)
        checks, runs = check_whole_runs(
            Evaluator(bench=bench, step_seconds=0.1, steps_per_epoch=None, time_left=lambda: left),
            {"onecycle": 50},
            Metric(PATTERN, **settings),
            reference_settings=reference_settings,
        )
        return {check.what: check for check in checks}, runs, bench

    return evaluator


def test_a_recipe_that_reaches_the_target_sooner_is_proven(judged):
    checks, runs, bench = judged({"": 0.09, "onecycle": 0.2}, target=0.5)
    assert checks["metric"].state == checks["target"].state == "passed"
    assert runs.seconds_to_target() == ([6.0] * 3, [3.0] * 3)
    assert [bool(settings) for settings in bench.launched] == [False, True, True, False, False, True]


def test_the_script_runs_with_the_plans_random_numbers_where_it_is_held_against_them(judged):
    checks, _, bench = judged({"loader": 0.09, "onecycle": 0.09}, reference_settings={"loader": True})
    assert checks["metric"].state == "passed" and "without the rest of the plan" in checks["metric"].text
    assert {next(iter(settings)) for settings in bench.launched} == {"loader", "onecycle"}


def test_a_target_that_the_plan_never_reaches_fails(judged):
    checks, _, _ = judged({"": 0.09, "onecycle": 0.01}, target=0.5)
    assert checks["target"].state == "failed" and "not reached with the plan at 3 of 3 seeds" in checks["target"].text


def test_where_the_script_never_comes_so_far_its_whole_run_stands_for_it(judged):
    _, runs, _ = judged({"": 0.01, "onecycle": 0.2}, target=0.5)
    assert runs.seconds_to_target()[0] == [10.0] * 3


def test_without_a_target_only_the_metric_is_asked(judged):
    checks, _, _ = judged({"": 0.09, "onecycle": 0.09})
    assert set(checks) == {"metric"} and checks["metric"].state == "passed"


def test_more_seeds_are_run_where_the_first_do_not_tell(judged, monkeypatch):
    monkeypatch.setattr(metric, "metric_holds", lambda before, _now, **_: quality.unknown("metric", f"{len(before)}"))
    checks, runs, _ = judged({"": 0.09, "onecycle": 0.09}, seeds=(3, 5))
    assert len(runs.baseline) == 5 and checks["metric"].text == "5"


def test_a_metric_may_be_the_better_the_higher_or_the_lower():
    before, worse = [0.90, 0.91, 0.92], [0.80, 0.81, 0.82]
    assert metric_holds(before, before, higher_is_better=True).state == "passed"
    assert metric_holds(before, worse, higher_is_better=True).state == "failed"
    assert metric_holds(before, worse, higher_is_better=False).state == "passed"
    assert metric_holds(before[:2], before[:2], higher_is_better=True).state == "unknown"


def test_a_course_that_ends_in_no_number_passes_nothing():
    baseline = [0.7, 0.71, 0.69]
    assert metric_holds(baseline, [0.7, 0.7, float("nan")], higher_is_better=True).state == "failed"
    assert metric_holds([0.7, 0.7, float("nan")], baseline, higher_is_better=True).state == "unknown"
    runs = WholeRuns(Metric(PATTERN))
    runs.baseline = [WholeRun(value=v, num_values=10, reached=None, seconds=1.0) for v in baseline]
    runs.plan = [WholeRun(value=v, num_values=9, reached=None, seconds=1.0) for v in baseline]
    assert _both("metric", [(float("nan"), 0.7), (0.7, 0.7)], {}).baseline == (0.7,), "no pair without a number"
    (check,) = runs.checks()
    assert check.state == "unknown" and "printed 9 times with the plan, 10 times without" in check.text


def test_a_script_that_fails_in_whole_runs_only_with_the_plan_fails_the_proof(judged, monkeypatch):
    def start(_self, _bench, settings, *, shift):
        def run():
            if bool(settings) == with_plan:
                raise SideError("no validation under it")
            return WholeRun(value=0.5, num_values=1, reached=None, seconds=1.0)

        return run

    monkeypatch.setattr(Metric, "start", start)
    with_plan = True
    assert judged({"": 0.09, "onecycle": 0.09})[0]["metric"].state == "failed"
    with_plan = False
    assert judged({"": 0.09, "onecycle": 0.09})[0]["metric"].state == "unknown"


def test_seeds_that_time_does_not_hold_are_not_begun(judged):
    checks, runs, _ = judged({"": 0.09, "onecycle": 0.09}, left=-45.0)
    assert len(runs.baseline) == 1 and "no time for 3 seeds: --budget gives more" in checks["metric"].text


def test_where_time_does_not_hold_all_seeds_as_many_as_it_holds_are_looked_at(judged, monkeypatch):
    unsure = lambda before, _now, **_: quality.unknown("metric", f"{len(before)}")  # noqa: E731
    monkeypatch.setattr(metric, "metric_holds", unsure)
    sides = {"": 0.09, "onecycle": 0.09}
    _, runs, _ = judged(sides, left=60.0 + 5 * 20.0)
    assert len(runs.baseline) == 8, "three, and five more in the time that is left"
    checks, runs, _ = judged(sides, left=60.0 + 2 * 20.0)
    assert len(runs.baseline) == 3 and "no time for 16 seeds: --budget gives more" in checks["metric"].text


def test_a_plan_as_good_as_the_script_passes_more_often_than_not_where_each_seed_goes_its_own_way():
    passes, wrong, draw = 0, 0, random.Random(0).gauss
    for _ in range(400):
        script, plan = ([draw(0.8, 0.02) for _ in range(SEEDS[1])] for _ in range(2))
        passes += metric_holds(script, plan, higher_is_better=True).state == "passed"
        wrong += metric_holds(script, [v - 0.02 for v in plan], higher_is_better=True).state == "passed"
    assert passes > 0.5 * 400 and wrong < 0.06 * 400


def test_a_script_that_never_reached_the_target_is_told_so(judged):
    checks, runs, _ = judged({"": 0.01, "onecycle": 0.2}, target=0.5)
    assert runs.num_never == 3
    assert "without the plan not within 10.0 s at 3 of 3 seeds: at least 3.33" in checks["target"].text


def test_less_may_be_better():
    loss = Metric(re.compile(r"loss ([0-9.]+)"), higher_is_better=False, target=0.5)
    output = Output(text="loss 0.9\nloss 0.4\n", grown=[(1.0, 9), (2.0, 18)], seconds=3.0)
    assert loss._read(output) == WholeRun(value=0.4, num_values=2, reached=2.0, seconds=3.0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("nothing", "is nowhere"),
        ("accuracy 1.2.3", "is not a number"),
        ("accuracy 9.8e-05", "out of a longer number"),
    ],
)
def test_a_metric_that_is_not_there_is_said(text, message):
    with pytest.raises(SideError, match=message):
        Metric(PATTERN)._read(Output(text=text, grown=[], seconds=1.0))


def test_the_recipe_that_is_first_at_the_target_is_chosen(monkeypatch):
    monkeypatch.setattr("hasten.tuning.metric.variables_of", lambda settings, scratch: {})
    bench = Runs({"": 0.06, "adamw": 0.1, "onecycle": 0.2})
    recipes = [{}, {"adamw": 0.001}, {"onecycle": 50}]
    ended = list(screening_runs(bench, {}, recipes, Metric(PATTERN, target=0.5), time_left=lambda: 11.0))
    assert [screened.reached for screened in ended] == [9.0, 6.0, 3.0]
    assert soonest(ended) == {"onecycle": 50}
    assert soonest([ScreeningRun(settings={"adamw": 0.1}, metric=0.2)]) == {}, "nobody came so far"
    assert not list(screening_runs(bench, {}, recipes, Metric(PATTERN), time_left=lambda: 0.0))
    assert len(list(screening_runs(bench, {}, recipes, Metric(PATTERN), time_left=lambda: 9.0))) == 1, (
        "a run takes ten seconds"
    )


@pytest.mark.slow
def test_a_whole_run_is_timed_by_what_it_prints(tmp_path, workspace):
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch\n"
        "w = torch.nn.Parameter(torch.zeros(2))\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "for epoch in range(3):\n"
        "    for _ in range(30):\n"
        "        optimizer.zero_grad(); (w - 1).square().sum().backward(); optimizer.step()\n"
        "    time.sleep(0.3)\n"
        "    print(f'µ accuracy 0.{epoch}')\n"
    )
    bench = Bench([sys.executable, str(script)], workspace, patience=60.0)
    run = Metric(PATTERN, target=0.1).run(bench, {}, shift=0)
    assert run.value == 0.2 and run.reached is not None and run.seconds - run.reached > 0.2
    assert not list(workspace.folder.glob("launch-*"))


def test_a_group_that_took_no_part_in_a_match_is_no_value():
    either = Metric(re.compile(r"accuracy(?: ([0-9.]+))?"))
    output = Output(text="accuracy\naccuracy 0.5\n", grown=[(1.0, 9), (2.0, 22)], seconds=3.0)
    assert either._read(output).value == 0.5


def test_what_was_printed_is_counted_in_characters_wherever_a_write_ended():
    said = "Fläche 0.5 ✓\n".encode()
    grown = [(float(end), end) for end in range(1, len(said) + 1)]
    counted = _in_characters(grown, said)
    assert counted[-1] == (float(len(said)), len(said.decode()))
    assert [number for _, number in counted] == sorted(number for _, number in counted)
