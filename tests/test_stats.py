"""Estimates and their intervals."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.stats import mean_interval, paired_speedup, ratio_interval, scaled

seconds = st.floats(min_value=1e-6, max_value=1e3)
several = st.lists(seconds, min_size=2, max_size=12)


@given(several)
def test_the_mean_lies_within_its_interval(values):
    value, low, high = mean_interval(values)
    assert value == pytest.approx(statistics.fmean(values))
    assert low <= value <= high


def test_one_value_says_nothing_of_its_spread():
    assert mean_interval([2.0]) == (2.0, 0.0, math.inf)


def test_the_interval_of_a_mean_is_students():
    # 2.776 is t for 4 degrees of freedom; the deviation of 1..5 is sqrt(2.5).
    half = 2.776 * math.sqrt(2.5) / math.sqrt(5)
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx((3.0, 3.0 - half, 3.0 + half))


def test_more_values_than_the_table_has_use_the_normal_quantile():
    values = [0.0, 1.0] * 20
    half = 1.96 * statistics.stdev(values) / math.sqrt(40)
    assert mean_interval(values).high == pytest.approx(0.5 + half)


@pytest.mark.parametrize("count", [3, 6, 12])
def test_the_interval_of_a_mean_covers_the_truth_19_times_of_20(count):
    draw = random.Random(count)
    inside = 0
    for _ in range(1000):
        _, low, high = mean_interval([draw.gauss(1.0, 0.1) for _ in range(count)])
        inside += low <= 1.0 <= high
    assert 930 <= inside <= 970


@pytest.mark.parametrize(("count", "noise"), [(4, 0.05), (6, 0.05), (12, 0.02)])
def test_the_interval_of_a_ratio_covers_the_truth_at_least_9_times_of_10(count, noise):
    draw = random.Random(count)
    inside = 0
    for _ in range(300):
        candidate = [0.8 * draw.gauss(1.0, noise) for _ in range(count)]
        baseline = [draw.gauss(1.0, noise) for _ in range(count)]
        _, low, high = ratio_interval(candidate, baseline, num_resamples=200)
        inside += low <= 0.8 <= high
    assert inside >= 270


def test_the_interval_of_a_ratio_is_not_so_wide_as_to_say_nothing():
    draw = random.Random(0)
    candidate = [0.8 * draw.gauss(1.0, 0.02) for _ in range(8)]
    baseline = [draw.gauss(1.0, 0.02) for _ in range(8)]
    assert ratio_interval(candidate, baseline).high < 0.9


def test_one_stalled_segment_does_not_decide_a_ratio():
    assert ratio_interval([1.0, 1.0, 1.0, 1.0, 9.0], [2.0] * 5).value == 0.5


@given(several, several)
def test_a_ratio_lies_within_its_interval_and_is_never_negative(candidate, baseline):
    value, low, high = ratio_interval(candidate, baseline, num_resamples=50)
    assert 0.0 <= low <= value <= high


@given(several, several, st.floats(min_value=0.1, max_value=10))
def test_a_ratio_does_not_depend_on_the_unit_of_time(candidate, baseline, unit):
    one = ratio_interval(candidate, baseline, num_resamples=50)
    other = ratio_interval([unit * x for x in candidate], [unit * x for x in baseline], num_resamples=50)
    assert other == pytest.approx(one, rel=1e-6, abs=1e-9)


def test_the_same_times_give_the_same_interval_again():
    values = [1.0, 1.1, 0.9, 1.3]
    assert ratio_interval(values, values) == ratio_interval(values, values)


def test_one_segment_a_side_gives_a_ratio_without_a_bound():
    assert ratio_interval([1.0], [2.0, 2.0]) == (0.5, 0.0, math.inf)


@pytest.mark.parametrize("sides", [([], [1.0]), ([1.0], [])])
def test_a_ratio_without_values_on_a_side_is_refused(sides):
    with pytest.raises(ValueError, match="both sides"):
        ratio_interval(*sides)


def test_a_falling_function_keeps_low_below_high():
    assert scaled((0.5, 0.4, 0.7), lambda r: 1 - r) == pytest.approx((0.5, 0.3, 0.6))


def test_pairs_whose_number_was_settled_beforehand_have_the_ordinary_interval():
    baseline, candidate = [2.0, 2.2, 1.9, 2.1], [1.0, 1.05, 1.0, 0.98]
    settled, looked = (paired_speedup(baseline, candidate, looks=looks) for looks in (False, True))
    assert settled.value == looked.value
    assert looked.low < settled.low < settled.value < settled.high < looked.high
    assert paired_speedup(baseline[:2], candidate[:2], looks=False).low > 0.0
