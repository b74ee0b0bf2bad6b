"""Several workloads, before and after, on the terminal.

In: searches by their workload's name. Out: one table. Refuses to conclude.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hasten import format
from hasten.records import Tuning
from hasten.reports.sheet import Sheet


def print_before_and_after(tunings: Sequence[tuple[str, Tuning]], *, console: Console) -> None:
    """Print a row a workload: samples/s before and after, the ratio with its interval, the proof."""
    sheet = Sheet(console)
    rows: list[tuple[str, ...]] = [("", "before", "after", "speedup", "proof")]
    for name, tuning in tunings:
        proof = tuning.proof
        if proof is None or not tuning.settings:
            rows.append((name, "", "", "", "the plan is empty" if not tuning.settings else "not proven"))
            continue
        shown = [format.rate(rate) if rate is not None else "" for rate in (proof.baseline_rate, proof.plan_rate)]
        ratio = format.ratio_interval(proof.sooner or proof.speedup)
        of_what = " to the target" if proof.sooner is not None else ""
        rows.append((name, *shown, ratio + of_what, proof.verdict))
    sheet.table(rows, align="lrrll", label="Speed")
    sheet.print()
