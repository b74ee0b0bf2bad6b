"""Print the result of `hasten compare`."""

from __future__ import annotations

import statistics

from rich.console import Console

from hasten import format
from hasten.records import Comparison, Interval
from hasten.reports.sheet import Sheet
from hasten.stats import scaled


def headline(found: Comparison) -> str:
    """The verdict, the ratio of the step times with its interval, and the limit, in one line."""
    limit = f"{format.share(found.max_slowdown)} slower"
    ratio = f"new step time {format.ratio_interval(found.ratio, ci=True)} the old one"
    if found.verdict == "faster":
        speedup = Interval(*scaled((found.ratio.value, found.ratio.low, found.ratio.high), lambda ratio: 1 / ratio))
        return f"{format.speedup(speedup, ci=True)}. OK: the limit is {limit}."
    if found.verdict == "slower":
        return f"Slower than the limit: {ratio}; the limit is {limit}."
    if found.verdict == "no difference":
        return f"No significant slowdown: {ratio}. OK: the limit is {limit}."
    return f"Inconclusive: {ratio}; the limit of {limit} is inside the interval."


def _mean(seconds: tuple[float, ...]) -> str:
    """Mean of step times, to about 1%: the precision at which two sides are compared."""
    mean = statistics.fmean(seconds)
    return format.middle(Interval(value=mean, low=0.99 * mean, high=1.01 * mean))


def print_comparison(found: Comparison, *, console: Console) -> None:
    """Print the verdict, the ratio of the step times, both step times and the notes."""
    sheet = Sheet(console)
    sheet.headline(headline(found))
    sheet.gap()
    rows = [
        (name, _mean(seconds), format.count(len(seconds), noun="measurement"))
        for name, seconds in (("old", found.old_seconds), ("new", found.new_seconds))
    ]
    sheet.table(rows, align="lrl", label="Step")
    for number, note in enumerate(found.notes):
        sheet.paragraph(note, label="" if number else "Notes")
    sheet.print()
