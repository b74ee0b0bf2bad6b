"""Print the results of several bundled workloads as one table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hasten import format
from hasten.records import Tuning
from hasten.reports.sheet import Sheet
from hasten.reports.tuning import VERDICTS


def print_before_and_after(tunings: Sequence[tuple[str, Tuning]], *, console: Console) -> None:
    """Print a row for each workload: baseline and tuned samples/s, speedup with its interval, quality check."""
    sheet = Sheet(console)
    rows: list[tuple[str, ...]] = [("", "baseline", "tuned", "speedup", "quality check")]
    first = True  # the first interval is spelled out
    for name, tuning in tunings:
        proof = tuning.proof
        if proof is None or not tuning.settings:
            rows.append((name, "", "", "", "empty plan" if not tuning.settings else "not proven"))
            continue
        shown = [format.rate(rate) if rate is not None else "" for rate in (proof.baseline_rate, proof.plan_rate)]
        ratio = format.ratio_interval(proof.target_speedup or proof.speedup, ci=first)
        goal = " to the target" if proof.target_speedup is not None else ""
        rows.append((name, *shown, ratio + goal, VERDICTS[proof.verdict]))
        first = False
    sheet.table(rows, align="lrrll", label="Speed")
    sheet.print()
