"""`hasten.measure()`: measure a training loop in a `with` block, in a notebook or anywhere else."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from hasten.errors import MeasurementError, NoStepError
from hasten.launch.launch import stage_lines
from hasten.launch.recorder import Recorded
from hasten.machine.machine import read_machine
from hasten.machine.resources import ResourceSampler
from hasten.measurement.measure import run_of
from hasten.protocol import LaunchSpec, files_of, read
from hasten.raw_run import RawRun, StageLine
from hasten.records import Run
from hasten.result import Result
from hasten.safe_text import redacted

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


class Measured(Result):
    """A measured `with` block, and its results after it has ended."""

    def __init__(self) -> None:
        self._here: InProcessMeasurement | None = None

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

    def __repr__(self) -> str:
        if self._here is None or self._here.run is None:
            return f"<hasten.Measured: {PENDING}>"
        return super().__repr__()


def measure() -> Measured:
    """Measure the training loop in a `with` block of this process.

    Steps are detected by their optimizer. Loaders, forward, backward and the other phases are marked in every other segment
    of steps. When the block ends, all hooks are removed from PyTorch. All findings are estimates, because nothing is run a
    second time.

    Raises:
        NoStepError: at the end of the block, if it contains no step, or too few.

    Example:
        ::

            with hasten.measure() as run:
                for images, labels in loader:
                    ...
            run.findings            # what slows the loop down, costliest first
            run.to_html("run.html")
    """
    return Measured()


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%hasten` to IPython: it runs the cell within `measure()` and shows the result."""

    def hasten(_line: str, cell: str) -> Measured | None:
        run = measure()
        run.__enter__()
        error: BaseException | None = None
        try:
            outcome = shell.run_cell(cell)
            error = outcome.error_before_exec or outcome.error_in_exec  # IPython has shown it
        except BaseException as raised:
            error = raised
            raise
        finally:
            run.__exit__(type(error) if error is not None else None, error, None)
        return run if error is None else None

    shell.register_magic_function(hasten, magic_kind="cell", magic_name="hasten")
