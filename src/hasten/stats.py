"""How large, and how sure? Pure functions on floats.

In: step times. Out: estimates with 95% intervals. Refuses to know what the numbers are of.
"""

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
    """Mean with its 95% interval by Student's t. One value: an interval of any width, so (0, infinity).

    Give means of segments, not single steps: neighbouring steps are not independent.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, 0.0, float("inf"))
    half = half_width(values, at=len(values))
    return Estimate(mean, mean - half, mean + half)


def half_width(values: Sequence[float], *, at: int) -> float:
    """Half of that interval if there were `at` values that spread as these do; two of them at the least."""
    return _quantile(at - 1) * statistics.stdev(values) / at**0.5


def ratio_interval(
    candidate: Sequence[float], baseline: Sequence[float], *, num_resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Ratio of the medians, candidate / baseline, with a 95% percentile-bootstrap interval.

    Medians of segments, so that a stall of the machine in one segment does not decide. Both sides are resampled
    independently (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13), and the interval is
    widened by the ratio of Student's t to the normal quantile, for the percentile interval of few values is too
    narrow (Hesterberg, The American Statistician 69, 2015). Raises ValueError when a side is empty.
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


# Looks at a growing number of pairs, and Student's t of each. Of 5% in all the first look may err in 2%, the second in 1%,
# the others in 0.5 % each: most trials end early, and what is spent late would widen the interval of those.
LOOKS = {3: 6.965, 4: 5.841, 6: 4.773, 8: 4.029, 12: 3.497, 16: 3.286}


def paired_speedup(baseline: Sequence[float], candidate: Sequence[float], *, looks: bool = True) -> Estimate:
    """Baseline / candidate, from pairs measured next to each other, with an interval that may be looked at repeatedly.

    The geometric mean of the pairs' ratios. Pairs, because what drifts falls on both of a pair; logarithms, because
    times are skewed and a ratio is; Student's t on them, because there are few. The interval is a repeated confidence
    interval (Jennison and Turnbull, Journal of the Royal Statistical Society B 51, 1989): its 5% are divided among the
    looks in `LOOKS`, so that stopping at whichever look is clear errs in no more than 5% of all trials. With a number
    of pairs between two looks the quantile is that of the look before. Fewer than three pairs: an interval of any width.
    Without `looks`, where the number of pairs was settled beforehand: the ordinary interval, from two pairs on. Raises
    ValueError when the sides are not of one length, or empty.
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
    """Mean size; None where one is not known, or all are the same, so that there is nothing to correct."""
    known = list(sizes)
    if None in known or len({*known}) < 2:
        return None
    return statistics.fmean(size for size in known if size is not None)


def mean_at_size(seconds: Sequence[float], sizes: Sequence[int | None], *, typical: float | None) -> float:
    """Mean seconds; where sizes differ, those of the typical size at the pace that was seen. Raises on no values."""
    whole = sum(size or 0 for size in sizes)
    return sum(seconds) / whole * typical if typical is not None and whole else statistics.fmean(seconds)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie, linearly interpolated. Raises on no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def scaled(interval: tuple[float, float, float], function: Callable[[float], float]) -> Estimate:
    """Apply a monotonic function to an interval, keeping low below high."""
    value, low, high = interval
    ends = sorted((function(low), function(high)))
    return Estimate(function(value), ends[0], ends[1])
