"""`hasten.measure()`: measure a training loop in a `with` block, in a notebook or anywhere else."""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING

from hasten.errors import MeasurementError

if TYPE_CHECKING:
    import pandas as pd

    from hasten.measurement.here import Here
    from hasten.records import Diagnosis, Finding, Phase, Run

PENDING = "nothing was measured yet: the `with` block must end first, without an error"


class Measured:
    """A measured `with` block, and its results after it has ended."""

    def __init__(self) -> None:
        self._here: Here | None = None
        self._diagnosis: Diagnosis | None = None

    def __enter__(self) -> Measured:
        from hasten.measurement.here import Here

        self._diagnosis = None
        self._here = Here()
        self._here.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._here is not None:
            self._here.__exit__(kind, error, trace)

    @property
    def record(self) -> Run:
        """The measured `Run`. Raises MeasurementError before the block has ended."""
        run = self._here.run if self._here is not None else None
        if run is None:
            raise MeasurementError(PENDING)
        return run

    @property
    def diagnosis(self) -> Diagnosis:
        """The conclusions: verdict, breakdown, ceiling, findings."""
        from hasten.measurement.diagnose import diagnose

        if self._diagnosis is None:
            self._diagnosis = diagnose(self.record)
        return self._diagnosis

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What slows the loop down, costliest first. All are estimates, because nothing was run a second time."""
        return self.diagnosis.findings

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with one row per step: start and duration in seconds, samples, and the seconds of each phase."""
        from hasten.reports.steps_table import COLUMNS, rows_of

        try:
            import pandas as pd
        except ImportError:
            raise MeasurementError("to_pandas() needs pandas; `pip install pandas`, or use record.steps") from None
        return pd.DataFrame(rows_of(self.record), columns=[*COLUMNS, *_phases(self.record)])

    def _repr_html_(self) -> str:
        from hasten.reports.page.page import PageInput, essentials

        return essentials(PageInput(run=self.record, diagnosis=self.diagnosis))

    def __repr__(self) -> str:
        from rich.console import Console

        from hasten.reports.text import print_diagnosis

        if self._here is None or self._here.run is None:
            return f"<hasten.Measured: {PENDING}>"
        paper = io.StringIO()
        print_diagnosis(
            self.record, self.diagnosis, console=Console(file=paper, width=80, color_system=None, force_jupyter=False)
        )
        return paper.getvalue().rstrip()


def _phases(run: Run) -> list[Phase]:
    from hasten.reports.steps_table import phases_of

    return phases_of(run)


def measure() -> Measured:
    """Measure the training loop in a `with` block of this process.

    Steps are detected by their optimizer. Loaders, forward, backward and the other phases are marked in every other segment
    of steps. When the block ends, all hooks are removed from PyTorch. Raises NoStepError if the block contains no step.
    """
    return Measured()
