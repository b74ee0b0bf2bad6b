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
from hasten.folders import SESSION
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
PENDING = "nothing was measured yet: the `with` block must end first, without an error"
FEWEST_STEPS = 5  # uninstrumented; of fewer nothing can be said
TOO_FEW = (
    "the block ended after {} steps, of which {} could be timed: at least {} must be; let it train for some seconds"
)


class InProcessMeasurement:
    """A block of this process that is measured. `run` is there once it has ended."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.why_not = PENDING

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
        if kind is None or issubclass(kind, KeyboardInterrupt):  # what an interrupted cell has done is worth a look
            try:
                self.run = self._run(raws, lines)
            except NoStepError as problem:  # what follows the block must run all the same
                self.why_not = str(problem)
                print(f"hasten: {problem}", file=sys.stderr)

    def _run(self, raws: list[RawRun], lines: list[StageLine]) -> Run:
        """Raises NoStepError."""
        if not raws or raws[0].first_step_at is None:
            raise NoStepError(NO_STEP)
        recorded = Recorded(raws[0], lines)
        if len(recorded.measured) < FEWEST_STEPS:
            timed = len(recorded.measured)
            raise NoStepError(TOO_FEW.format(raws[0].num_steps, timed, FEWEST_STEPS))
        return run_of(
            recorded,
            name=time.strftime("%Y%m%d-%H%M%S", time.localtime(self._started)) + f"-{os.getpid()}",
            command=_session(),
            started=self._started,
            zero=self._zero,
            machine=read_machine(),
            samples=self._sampler.samples,
            sampler_cpu=self._sampler.cpu_seconds / max(time.perf_counter() - self._zero, 1e-9),
        )


def _session() -> tuple[str, ...]:
    """What is measured: this script and its arguments, or the notebook, which no command starts."""
    if not sys.argv or not sys.argv[0]:
        return (SESSION,)
    if Path(sys.argv[0]).name in ("ipykernel_launcher.py", "colab_kernel_launcher.py"):
        name = Path(os.environ.get("JPY_SESSION_NAME", "")).name  # set by Jupyter's server
        return (SESSION, name) if name else (SESSION,)
    return redacted(sys.argv)


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
        """The measured `Run`. Raises MeasurementError before the block has ended, and if too few steps were seen in it."""
        if self._here is None or self._here.run is None:
            raise MeasurementError(self._why_not)
        return self._here.run

    @property
    def has_result(self) -> bool:
        """Whether the block has ended with enough steps."""
        return self._here is not None and self._here.run is not None

    @property
    def _why_not(self) -> str:
        return PENDING if self._here is None else self._here.why_not

    def _repr_html_(self) -> str | None:
        return super()._repr_html_() if self.has_result else None  # then the text is shown

    def __repr__(self) -> str:
        if not self.has_result:
            return f"<hasten.Measured: {self._why_not}>"
        return super().__repr__()


def measure() -> Measured:
    """Measure the training loop in a `with` block of this process.

    Steps are detected by their optimizer. Loaders, forward, backward and the other phases are marked in every other segment
    of steps. When the block ends, all hooks are removed from PyTorch. All findings are estimates, because nothing is run a
    second time.

    The block itself never fails for hasten's sake: if it held no step, or too few, that is printed, and asking for the result
    raises MeasurementError. Only the thread that opened the block is measured.

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
        return run if error is None or isinstance(error, KeyboardInterrupt) else None

    shell.register_magic_function(hasten, magic_kind="cell", magic_name="hasten")
