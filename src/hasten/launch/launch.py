"""Start the user's own command in a fresh process, read back what it recorded, and end all that it started."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from hasten.errors import CommandError, RecordError, Stopped
from hasten.launch.environment import environment_for
from hasten.launch.processes import ENDING, HeldInterrupts, Watch, end_everything, statuses_in
from hasten.launch.results import make_folder
from hasten.machine.resources import ResourceSampler
from hasten.protocol import FOLDER_VARIABLE, LaunchSpec, Status, files_of, from_json, read
from hasten.raw_run import STAGES, Fetched, RawRun, StageLine
from hasten.records import ResourceSample
from hasten.safe_text import legible
from hasten.sandbox.workspace import Workspace

OUTPUT = "output.txt"  # in a launch's folder: what the command printed, where that is kept


@dataclass(kw_only=True)
class Outcome:
    """How a launched command ended, and what it left."""

    exit_code: int | None  # None: hasten ended it, its window being full
    raws: list[RawRun] = field(default_factory=list)
    stages: list[StageLine] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    samples: list[ResourceSample] = field(default_factory=list)
    started: float = 0.0  # perf_counter at the start
    seconds: float = 0.0
    sampler_cpu: float = 0.0  # seconds of CPU that watching took
    output: str = ""  # what it printed, where that was kept

    @property
    def last_line(self) -> str:
        """The last line that it printed, as a rule of a traceback; without control characters."""
        last = next((line for line in reversed(self.output.splitlines()) if line.strip()), "it printed nothing")
        return legible(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last)).strip()[:200]


def command_argv(argv: Sequence[str], *, module: bool) -> list[str]:
    """The command line to run: a script and a module under this Python, any other command unchanged.

    Raises CommandError when there is nothing of that name to run.
    """
    if not argv:
        raise CommandError("no script given; try for example `hasten diagnose train.py`")
    if module:
        return [sys.executable, "-m", *argv]
    first = Path(argv[0])
    if first.suffix == ".py":
        if not first.is_file():
            raise CommandError(f"no such script: {argv[0]}; {_near(first)}")
        return [sys.executable, *argv]
    # A program of this environment, torchrun among them, is meant also where the environment is not activated.
    found = shutil.which(argv[0]) or shutil.which(argv[0], path=str(Path(sys.executable).parent))
    if found is not None:
        return [found, *argv[1:]]
    if first.is_dir():
        raise CommandError(f"{argv[0]} is a folder; name the script in it")
    if first.suffix == ".ipynb" and first.is_file():
        raise CommandError(f"{argv[0]} is a notebook; use hasten.measure() in it, or `jupyter nbconvert --to script`")
    if first.is_file():
        raise CommandError(f"{argv[0]} is neither a Python script (.py) nor executable; try `python {argv[0]}`")
    raise CommandError(f"no such script or command: {argv[0]}; {_near(first)}")


def _near(missing: Path) -> str:
    """What to try instead of a script that is not there."""
    names = [path.name for path in missing.parent.glob("*.py")]
    near = difflib.get_close_matches(missing.with_suffix(".py").name, names, n=1)
    return f"did you mean {missing.with_name(near[0])}?" if near else "check the path and the working directory"


@dataclass(kw_only=True)
class Launch:
    """A launched command: started on entry; on exit it has ended, with all that it started."""

    command: Sequence[str]
    spec: LaunchSpec
    folder: Path  # inside the workspace's
    workspace: Workspace
    environment: Mapping[str, str] = field(default_factory=dict)
    output: int | None = None  # descriptor for its output; None: ours
    quiet: bool = False  # its errors go there as well
    patience: float = 60.0  # seconds for a first step
    longest: float = float("inf")  # seconds for everything
    on_status: Callable[[Status], object] = lambda _: None
    apart: bool = False  # in a process group of its own, in which it can be stopped
    _stood: float = 0.0  # seconds that it was stopped
    _stopped_at: float | None = None
    _around: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def run(self) -> Outcome:
        """Enter, and leave when its windows are full or it has ended by itself.

        Raises NoStepError when no step was made in `patience` seconds, no further one in ten times that, or the windows
        are not full after `longest`; and KeyboardInterrupt on Ctrl-C, when everything has ended.
        """
        with self:
            while not self.over():
                time.sleep(0.05)
        return self.outcome

    def __enter__(self) -> Launch:
        make_folder(self.folder)
        self._around.enter_context(ending_as_interrupt())
        try:
            self._start()
        except BaseException:
            self._around.close()
            raise
        return self

    def _start(self) -> None:
        started = time.perf_counter()
        scratch = tempfile.TemporaryDirectory(dir=self.workspace.folder, ignore_cleanup_errors=True)
        sockets = self._around.enter_context(scratch)
        spec = replace(self.spec, launcher=os.getpid(), sockets=sockets, sandbox=self.workspace.form)
        command, view = self._around.enter_context(self.workspace.sandboxed(self.command))
        held = HeldInterrupts()  # an interrupt between a start and what ends it would leave the script running
        try:
            self.process = subprocess.Popen(
                command,
                env=environment_for(spec, self.folder, self.environment, view=view),
                stdout=self.output,
                stderr=self.output if self.quiet else None,
                start_new_session=self.apart,
            )
            self.outcome = Outcome(exit_code=None, started=started)
            self._sampler = ResourceSampler(self.process.pid, clock=lambda: time.perf_counter() - started)
            self._watch = Watch(
                self.process,
                self.folder,
                patience=self.patience,
                longest=self.longest,
                on_status=self.on_status,
                clock=self._seconds,
            )
        except BaseException:
            held.let_go()
            raise
        try:
            held.let_go()
            self._sampler.__enter__()
        except BaseException:
            self._end()
            raise

    def _seconds(self) -> float:
        """A clock that stands while the command does."""
        return time.monotonic() - self._stood

    def over(self) -> bool:
        """Whether its windows are full, or it has ended by itself. Raises NoStepError as `run` does."""
        return self._watch.over()

    def stop(self) -> None:
        """Have everything of it stand still."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it work again."""
        if self._stopped_at is not None:
            self._stood += time.monotonic() - self._stopped_at
            self._stopped_at = None
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.go_on()  # what stands still hears no request to end
            self.outcome.exit_code = self._watch.exit_code
            self._sampler.__exit__(kind, error, trace)
        finally:
            self._end()
        if kind is not None:
            return
        outcome, folder = self.outcome, self.folder
        outcome.raws = [read(RawRun, path) for path in files_of(RawRun, folder)]
        outcome.stages = list(stage_lines(folder))
        outcome.statuses = statuses_in(folder)
        if (folder / OUTPUT).exists():
            outcome.output = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")

    def _end(self) -> None:
        try:
            self.outcome.seconds = time.perf_counter() - self.outcome.started
            mark = (FOLDER_VARIABLE, os.fspath(self.folder.resolve()))
            end_everything(self.process, self._sampler.seen, mark=mark)
            self.outcome.samples = list(self._sampler.samples)
            self.outcome.sampler_cpu = self._sampler.cpu_seconds
        finally:
            self._around.close()


def stage_lines(folder: Path) -> Iterator[StageLine]:
    """What workers wrote of the batches they made."""
    for path in folder.glob(STAGES.format("*")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(RecordError):  # a worker killed while writing leaves half a line
                yield from_json(StageLine, line, source=path.name)


@contextlib.contextmanager
def ending_as_interrupt() -> Generator[None]:
    """A termination signal acts like Ctrl-C: what was started must not outlive hasten."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number=number)

    before: list[tuple[int, Any]] = []
    if threading.current_thread() is threading.main_thread():
        ending = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before += [(number, signal.signal(number, interrupt)) for number in ending]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


MAKE_ROOM = "use a smaller batch with gradient accumulation, or activation checkpointing (torch.utils.checkpoint)"


def failure(code: int, outcome: Outcome) -> str:
    """Why a script that ended with this code cannot be measured."""
    short = next((raw for raw in outcome.raws if raw.ended_by == "out of memory"), None)
    if short is not None:
        return f"memory ran out{_batch(short)}; {MAKE_ROOM}"
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            if name == "SIGKILL":
                return "the script was ended by SIGKILL, as the system does where memory runs out: see what takes it"
            return f"the script was ended by {name}; nothing was measured"
    return f"the script failed with exit code {code}; fix it first (its own message is above)"


def _batch(raw: RawRun) -> str:
    """With what batch, if it was seen."""
    lengths = [s.detail.num_samples for s in raw.spans if isinstance(s.detail, Fetched) and s.detail.num_samples]
    if not lengths or lengths[-1] < 2:
        return ""
    return f" at a batch of {lengths[-1]} samples"


def why_no_step(outcome: Outcome) -> str:
    """Why a script that ended well was not seen to make a step."""
    if not outcome.statuses:
        return (
            "the script ended and never imported torch where hasten could see it; "
            "is it a PyTorch script? (python -I and TORCH_DEVICE_BACKEND_AUTOLOAD=0 keep hasten out)"
        )
    if backwards := max(s.num_backwards for s in outcome.statuses):
        return f"the script ended after {backwards} backwards and no optimizer step; give it more steps to run"
    if any(s.state == "loading" for s in outcome.statuses):
        return (
            "the script ended without an optimizer step, though it iterated a loader; does the loader yield batches?"
        )
    return "the script ended without an optimizer step; name the script that trains"
