"""`hasten.measure()`: measure a training loop in a `with` block, in a notebook or anywhere else."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hasten.errors import MeasurementError, NoStepError
from hasten.launch.launch import stage_lines
from hasten.launch.recorder import Recorded
from hasten.machine.machine import read_machine
from hasten.machine.resources import ResourceSampler
from hasten.measurement.measure import run_of
from hasten.protocol import LaunchSpec, files_of, read
from hasten.raw_run import RawRun, StageLine
from hasten.records import Run
from hasten.safe_text import redacted

if TYPE_CHECKING:
    import pandas as pd

    from hasten.records import Diagnosis, Finding, Phase, Run

NO_STEP = "no optimizer step was seen in the block; put the training loop, with its optimizer's step, inside it"
TOO_FEW = "the block ended after {} steps, too few to measure; let it train for a few seconds"


class InProcessMeasurement:
    """A block of this process that is measured. `run` is there once it has ended."""

    def __init__(self) -> None:
        self.run: Run | None = None

    def __enter__(self) -> InProcessMeasurement:
        from hasten.agent.child import begin

        self._around = ExitStack()
        try:
            self._folder = Path(self._around.enter_context(tempfile.TemporaryDirectory(prefix="hasten-")))
            self._started, self._zero = time.time(), time.perf_counter()
            self._session, patches = begin(self._folder, LaunchSpec(mode="here"))
            self._around.callback(patches.undo)
            self._session.leave = lambda: None  # there is more to come in this process
            sampler = ResourceSampler(os.getpid(), clock=lambda: time.perf_counter() - self._zero)
            self._sampler = self._around.enter_context(sampler)
        except BaseException:
            self._around.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._around:
            self._session.finish("script")
            raws = [read(RawRun, path) for path in files_of(RawRun, self._folder)]
            lines = [line for line in stage_lines(self._folder) if line.loader is None or line.pid == os.getpid()]
        if kind is None:
            self.run = self._run(raws, lines)

    def _run(self, raws: list[RawRun], lines: list[StageLine]) -> Run:
        """Raises NoStepError."""
        if not raws or raws[0].first_step_at is None:
            raise NoStepError(NO_STEP)
        recorded = Recorded(raws[0], lines)
        if not recorded.measured:
            raise NoStepError(TOO_FEW.format(raws[0].num_steps))
        return run_of(
            recorded,
            name=time.strftime("%Y%m%d-%H%M%S", time.localtime(self._started)) + f"-{os.getpid()}",
            command=redacted(sys.argv) if sys.argv and sys.argv[0] else ("a session",),
            started=self._started,
            zero=self._zero,
            machine=read_machine(),
            samples=self._sampler.samples,
            sampler_cpu=self._sampler.cpu_seconds / max(time.perf_counter() - self._zero, 1e-9),
        )


PENDING = "nothing was measured yet: the `with` block must end first, without an error"


class Measured:
    """A measured `with` block, and its results after it has ended."""

    def __init__(self) -> None:
        self._here: InProcessMeasurement | None = None
        self._diagnosis: Diagnosis | None = None

    def __enter__(self) -> Measured:
        self._diagnosis = None
        self._here = InProcessMeasurement()
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
        from hasten.reports.export import COLUMNS, rows_of

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
    from hasten.reports.export import phases_of

    return phases_of(run)


def measure() -> Measured:
    """Measure the training loop in a `with` block of this process.

    Steps are detected by their optimizer. Loaders, forward, backward and the other phases are marked in every other segment
    of steps. When the block ends, all hooks are removed from PyTorch. Raises NoStepError if the block contains no step.
    """
    return Measured()
