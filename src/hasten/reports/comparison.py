"""Whether a script has become slower, on the terminal.

In: a Comparison. Out: a few lines. Refuses to conclude.
"""

from __future__ import annotations

import statistics

from rich.console import Console

from hasten import format
from hasten.records import Comparison, Interval
from hasten.reports.sheet import Sheet

_SAYS = {
    "faster": "Faster",
    "slower": "Slower than allowed",
    "no difference": "No slower than allowed",
    "inconclusive": "Inconclusive: the interval holds both slower than allowed and not",
}


def _mean(seconds: tuple[float, ...]) -> str:
    """To one percent, for that is what sides may differ by."""
    mean = statistics.fmean(seconds)
    return format.middle(Interval(value=mean, low=0.99 * mean, high=1.01 * mean))


def print_comparison(found: Comparison, *, console: Console) -> None:
    """Print the verdict, both step times and their ratio."""
    sheet = Sheet(console)
    allowed = format.share(found.max_slowdown)
    sheet.headline(f"{_SAYS[found.verdict]} ({allowed}): a step takes {format.ratio_interval(found.ratio)} as long.")
    sheet.gap()
    rows = [
        (name, _mean(seconds), format.count(len(seconds), noun="mean step time"))
        for name, seconds in (("old", found.old_seconds), ("new", found.new_seconds))
    ]
    sheet.table(rows, align="lrl", label="Step")
    for number, note in enumerate(found.notes):
        sheet.paragraph(note, label="" if number else "Notes")
    sheet.print()
