"""The steps of a run as a table, for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io

from hasten.records import PHASES, Phase, Run

COLUMNS = ("step", "start", "seconds", "marked", "starts_epoch", "num_batches", "num_samples")


def phases_of(run: Run) -> list[Phase]:
    """The phases that occur in any step, in the order of `PHASES`."""
    seen = {name for step in run.steps for name in step.phases}
    return [name for name in PHASES if name in seen]


def rows_of(run: Run) -> list[list[float | None]]:
    """One row per step, with the columns `COLUMNS` and `phases_of(run)`. A phase that was not seen is None, never zero."""
    phases = phases_of(run)
    return [
        [s.index, s.start, s.seconds, s.marked, s.starts_epoch, s.num_batches, s.num_samples]
        + [s.phases.get(name) for name in phases]
        for s in run.steps
    ]


def csv_of(run: Run) -> str:
    """The table as CSV text. Times are in seconds, starts since the run's start; what was not measured is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *phases_of(run)])
    writer.writerows(rows_of(run))
    return text.getvalue()
