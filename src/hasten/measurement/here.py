"""A training loop that is measured where it stands: in a notebook's cell, or in a script that asks for it.

In: the steps between entry and exit. Out: a Run. Refuses to end the process, to keep anything from being saved, and to
leave a hook behind: whatever was patched is as it was when the block is left, however it is left.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from hasten.errors import NoStepError
from hasten.launch.launch import stage_lines
from hasten.launch.recorder import Recorded
from hasten.machine.machine import read_machine
from hasten.machine.resources import ResourceSampler
from hasten.measurement.measure import run_of
from hasten.protocol import LaunchSpec, files_of, read
from hasten.raw_run import RawRun, StageLine
from hasten.records import Run
from hasten.safe_text import redacted

NO_STEP = "no optimizer step was seen in the block; put the training loop, with its optimizer's step, inside it"
TOO_FEW = "the block ended after {} steps, too few to measure; let it train for a few seconds"


class Here:
    """A block of this process that is measured. `run` is there once it has ended."""

    def __init__(self) -> None:
        self.run: Run | None = None

    def __enter__(self) -> Here:
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
            told = [line for line in stage_lines(self._folder) if line.loader is None or line.pid == os.getpid()]
        if kind is None:
            self.run = self._run(raws, told)

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
