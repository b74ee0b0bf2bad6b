"""Estimates with 95% intervals: means, ratios and paired speedups."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class Estimate(NamedTuple):
    """A value with its 95% interval."""

    value: float
    low: float
    high: float


# Two-sided 97.5% quantiles of Student's t for 1..30 degrees of freedom; the normal's beyond.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def _quantile(freedom: int) -> float:
    return _T[freedom - 1] if freedom <= len(_T) else 1.96


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean with its 95% interval by Student's t; (0, infinity) for a single value.

    Pass means of segments, not single steps: neighboring steps are not independent.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, 0.0, float("inf"))
    half = half_width(values, at=len(values))
    return Estimate(mean, mean - half, mean + half)


def half_width(values: Sequence[float], *, at: int) -> float:
    """Half the width of that interval for `at` values with the standard deviation of these (at least two)."""
    return _quantile(at - 1) * statistics.stdev(values) / at**0.5


def ratio_interval(
    candidate: Sequence[float], baseline: Sequence[float], *, num_resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Ratio of the medians, candidate / baseline, with a 95% percentile-bootstrap interval.

    Medians of segments are used so that a stall of the machine in one segment has little effect. Both sides are resampled
    independently (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13), and the interval is
    widened by the ratio of Student's t to the normal quantile, because the percentile interval of few values is too
    narrow (Hesterberg, The American Statistician 69, 2015). Raises ValueError if a side is empty.
    """
    if not candidate or not baseline:
        raise ValueError("a ratio needs values on both sides")
    value = statistics.median(candidate) / statistics.median(baseline)
    if min(len(candidate), len(baseline)) < 2:
        return Estimate(value, 0.0, float("inf"))
    draw = random.Random(seed)
    ratios = sorted(
        statistics.median(draw.choices(candidate, k=len(candidate)))
        / statistics.median(draw.choices(baseline, k=len(baseline)))
        for _ in range(num_resamples)
    )
    freedom = min(min(len(candidate), len(baseline)) - 1, len(_T))
    widen = _T[freedom - 1] / 1.96
    low = value - widen * max(0.0, value - ratios[int(0.025 * num_resamples)])
    high = value + widen * max(0.0, ratios[int(0.975 * num_resamples) - 1] - value)
    return Estimate(value, max(0.0, low), high)


# Number of pairs at each look, and the quantile of Student's t. Of the total error of 5%, the first look gets 2%, the second
# 1% and the others 0.5% each: most trials end early, and error spent late would widen the intervals of those.
# A trial that time interrupts is looked at once more, between two looks. Simulated with a look after every pair from the third
# on, 2.9% of trials without a difference are called faster.
LOOKS = {3: 6.965, 4: 5.841, 6: 4.773, 8: 4.029, 12: 3.497, 16: 3.286}


def paired_speedup(baseline: Sequence[float], candidate: Sequence[float], *, looks: bool = True) -> Estimate:
    """Baseline / candidate, from pairs measured next to each other, with an interval that is valid at repeated looks.

    The geometric mean of the pairs' ratios. Pairs, because drift affects both of a pair; logarithms, because times and
    ratios are skewed; Student's t, because there are few pairs. The interval is a repeated confidence
    interval (Jennison and Turnbull, Journal of the Royal Statistical Society B 51, 1989): its 5% are divided among the
    looks in `LOOKS`, so that stopping at any clear look is wrong in at most 5% of all trials. Between two looks, the
    quantile is that of the look before. With fewer than three pairs the interval is (0, infinity).
    Without `looks`, for a number of pairs that was fixed in advance: the ordinary interval, from two pairs on. Raises
    ValueError if the sides are empty or of different lengths.
    """
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError("pairs need both sides")
    logs = [math.log(b / c) for b, c in zip(baseline, candidate)]
    mean = statistics.fmean(logs)
    if len(logs) < (min(LOOKS) if looks else 2):
        return Estimate(math.exp(mean), 0.0, float("inf"))
    factor = LOOKS[max(n for n in LOOKS if n <= len(logs))] if looks else _quantile(len(logs) - 1)
    half = factor * statistics.stdev(logs) / math.sqrt(len(logs))
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def typical_size(sizes: Iterable[int | None]) -> float | None:
    """Mean size; None if a size is unknown, or if all are the same and there is nothing to correct."""
    known = list(sizes)
    if None in known or len({*known}) < 2:
        return None
    return statistics.fmean(size for size in known if size is not None)


def mean_at_size(seconds: Sequence[float], sizes: Sequence[int | None], *, typical: float | None) -> float:
    """Mean seconds, corrected to the typical size if sizes differ. Raises on no values."""
    whole = sum(size or 0 for size in sizes)
    return sum(seconds) / whole * typical if typical is not None and whole else statistics.fmean(seconds)


def scaled(interval: tuple[float, float, float], function: Callable[[float], float]) -> Estimate:
    """Apply a monotonic function to an interval, keeping low below high."""
    value, low, high = interval
    ends = sorted((function(low), function(high)))
    return Estimate(function(value), ends[0], ends[1])
