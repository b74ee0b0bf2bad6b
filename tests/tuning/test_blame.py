"""What whole runs speak against goes; a recipe stays only where it was shown to be sooner; fewer bits where they were shown
to do no harm."""

import pytest

from hasten.tuning import quality
from hasten.tuning.evaluator import verdict_of
from hasten.tuning.prove import _in_doubt, _to_blame

PLAN = {"bf16": True, "cache": "auto", "onecycle": 100}


def test_a_recipe_that_was_not_shown_to_be_sooner_goes():
    for state in (quality.failed, quality.unknown):
        told = [quality.passed("metric", "as good"), state("target", "1.01 times as soon")]
        assert _to_blame(told, PLAN) == {"onecycle": "1.01 times as soon"}


def test_a_recipe_that_reached_its_target_sooner_stays():
    assert _to_blame([quality.passed("metric", ""), quality.passed("target", "")], PLAN) == {}


@pytest.mark.parametrize(("plan", "blamed"), [(PLAN, "onecycle"), ({"bf16": True, "cache": "auto"}, "bf16")])
def test_a_worse_metric_is_the_weakest_guarantees_fault(plan, blamed):
    assert _to_blame([quality.failed("metric", "it is worse")], plan) == {blamed: "it is worse"}


def test_what_could_not_be_told_of_a_metric_speaks_against_nothing():
    assert _to_blame([quality.unknown("metric", "too few seeds")], PLAN) == {}


SAME, UNCLEAR = quality.passed("batches", ""), quality.unknown("band", "there was no time for 8 seeds")


def test_fewer_bits_that_could_not_be_judged_go_where_the_rest_is_the_same_to_the_bit():
    found = _in_doubt([SAME, UNCLEAR], {"bf16": True, "cache": "auto"})
    assert found == {"bf16": "that it trains as well was not shown: there was no time for 8 seeds"}


@pytest.mark.parametrize(
    ("checks", "plan"),
    [
        ([SAME, quality.passed("band", "")], {"bf16": True, "cache": "auto"}),
        ([SAME, UNCLEAR], {"bf16": True}),  # nothing would be left
        ([SAME, UNCLEAR], {"cache": "auto"}),
        ([quality.unknown("batches", ""), UNCLEAR], {"bf16": True, "cache": "auto"}),  # so would the rest be
        ([SAME], {"bf16": True, "cache": "auto"}),
    ],
)
def test_else_they_stay(checks, plan):
    assert _in_doubt(checks, plan) == {}


def test_a_target_that_is_reached_tells_what_the_first_losses_could_not():
    assert verdict_of([SAME, UNCLEAR]) == "not proven"
    assert verdict_of([SAME, UNCLEAR, quality.passed("target", "3 times as soon")]) == "proven"
    assert verdict_of([SAME, UNCLEAR, quality.unknown("target", "too few seeds")]) == "not proven"
    assert verdict_of([SAME, quality.failed("band", ""), quality.passed("target", "3 times as soon")]) == "broken"
    assert verdict_of([UNCLEAR, quality.unknown("metric", ""), quality.passed("target", "")]) == "not proven"
