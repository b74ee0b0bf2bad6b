"""The steps of a run as a table: for spreadsheets, and for pandas."""

from __future__ import annotations

import csv
import io

from hasten.records import PHASES, Phase, Run

COLUMNS = ("step", "start", "seconds", "marked", "starts_epoch", "num_batches", "num_samples")


def phases_of(run: Run) -> list[Phase]:
    """The phases that were seen in any step, in their order."""
    seen = {name for step in run.steps for name in step.phases}
    return [name for name in PHASES if name in seen]


def rows_of(run: Run) -> list[list[float | None]]:
    """A row a step; a phase that was not seen in it is None, never zero."""
    phases = phases_of(run)
    return [
        [s.index, s.start, s.seconds, s.marked, s.starts_epoch, s.num_batches, s.num_samples]
        + [s.phases.get(name) for name in phases]
        for s in run.steps
    ]


def csv_of(run: Run) -> str:
    """The table as text; what was not measured is an empty cell. Seconds, since the run's start."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *phases_of(run)])
    writer.writerows(rows_of(run))
    return text.getvalue()
