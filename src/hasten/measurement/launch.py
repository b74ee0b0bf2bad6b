"""Start the user's own command in a fresh process, watch it, and read back what it recorded.

In: the words of a command and a spec. Out: the raw records, the stage lines and the machine over time. Refuses to
leave anything behind: whatever the command started is ended with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hasten.errors import CommandError, DirectoryError, NoStepError
from hasten.measurement.ending import HeldInterrupts, end_everything
from hasten.measurement.system.resources import ResourceSampler
from hasten.records import ResourceSample

FOLDER_VARIABLE = "HASTEN_RUN_FOLDER"
STALLS = 10  # times the patience for a first step, after which a script that makes no more steps is given up
GRACE = 5.0  # seconds that other training processes get to finish their windows, and children to end

# A measured run logs to no tracker. These have a switch of their own; the others are redirected in the child.
TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "DVCLIVE_TEST": "true",
}

JOINED = {"LD_PRELOAD": ":", "PYTORCH_CUDA_ALLOC_CONF": ","}  # variables that hold a list: the user's own stays

ENTRY_POINT = """\
import sys

def install():
    try:
        import hasten
    except ImportError:
        sys.path.append({home!r})
    from hasten.measurement.inside.child import install
    install()
"""


@dataclass(kw_only=True)
class Outcome:
    """How a launched command ended, and what it left."""

    exit_code: int | None  # None: hasten ended it, its window being full
    raws: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[list[Any]] = field(default_factory=list)
    samples: list[ResourceSample] = field(default_factory=list)
    started: float = 0.0  # perf_counter at the start
    seconds: float = 0.0
    sampler_cpu: float = 0.0  # seconds of CPU that watching took


def command_words(words: Sequence[str], *, module: bool) -> list[str]:
    """The command line to run: a script and a module under this Python, any other command as it is.

    Raises CommandError when there is nothing of that name to run.
    """
    if not words:
        raise CommandError("no script given; write for example `hasten diagnose train.py`")
    if module:
        return [sys.executable, "-m", *words]
    first = Path(words[0])
    if first.suffix == ".py":
        if not first.is_file():
            raise CommandError(f"no such script: {words[0]}; check the path and the working directory")
        return [sys.executable, *words]
    found = shutil.which(words[0])
    if found is not None:
        return [found, *words[1:]]
    if first.is_dir():
        raise CommandError(f"{words[0]} is a folder; name the script in it")
    if first.is_file():
        raise CommandError(f"{words[0]} is neither a Python script (.py) nor executable; try `python {words[0]}`")
    raise CommandError(f"no such script or command: {words[0]}")


def make_folder(folder: Path) -> Path:
    """Make a folder for a run's files. Raises DirectoryError when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise DirectoryError(
            f"cannot write to {folder} ({error.strerror}); run from a directory that you may write to"
        ) from None
    return folder


def launch(
    command: Sequence[str],
    *,
    spec: Mapping[str, object],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    output: int | None = None,
    patience: float = 60.0,
    longest: float = float("inf"),
    on_status: Callable[[list[object]], object] = lambda _: None,
) -> Outcome:
    """Run `command` until its windows are full or it ends by itself.

    `output` is a file descriptor that takes its standard output (and, when `spec["quiet"]` is true, its standard
    error too); None leaves both alone. Raises NoStepError when no step was made in `patience` seconds, no further one in ten
    times that, or the window is not full after `longest`, and KeyboardInterrupt on Ctrl-C, after everything that was started has ended.
    """
    make_folder(folder)
    started = time.perf_counter()
    with (
        _sigterm_as_interrupt(),
        tempfile.TemporaryDirectory(prefix="hasten-", ignore_cleanup_errors=True) as sockets,
    ):
        told = {**spec, "launcher": os.getpid(), "sockets": sockets}
        (folder / "spec.json").write_text(json.dumps(told), encoding="utf-8")
        held = HeldInterrupts()  # an interrupt between a start and what ends it would leave the script running
        try:
            process = subprocess.Popen(
                command,
                env=environment_for(folder, environment or {}),
                stdout=output,
                stderr=output if spec.get("quiet") else None,
            )
            outcome = Outcome(exit_code=None, started=started)
            sampler = ResourceSampler(process.pid, clock=lambda: time.perf_counter() - started)
        except BaseException:
            held.let_go()
            raise
        try:
            held.let_go()
            with sampler:
                outcome.exit_code = _wait(process, folder, patience, longest, on_status)
        finally:
            outcome.seconds = time.perf_counter() - started
            end_everything(process, sampler.seen, mark=(FOLDER_VARIABLE, os.fspath(folder.resolve())))
            outcome.samples = list(sampler.samples)
            outcome.sampler_cpu = sampler.cpu_seconds
    outcome.raws = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("raw-*.json"))]
    outcome.stages = list(_stage_lines(folder))
    outcome.statuses = _statuses(folder)
    return outcome


def environment_for(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a process, and all it starts, is measured into `folder`."""
    environment = plugin_environment(folder, {**TRACKERS, **extra})
    environment[FOLDER_VARIABLE] = os.fspath(folder.resolve())
    return environment


def plugin_environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment in which torch calls the plug-in at the end of its import; its entry point lies in `folder`."""
    autoload = folder / "autoload"
    information = autoload / "hasten_autoload-1.dist-info"
    make_folder(information)
    if os.pathsep in os.fspath(autoload.resolve()):
        raise DirectoryError(
            f"the path of {folder} has a {os.pathsep!r}, which PYTHONPATH cannot hold; run elsewhere"
        )
    home = os.fspath(Path(__file__).resolve().parents[2])
    _write_whole(autoload / "hasten_autoload.py", ENTRY_POINT.format(home=home))
    _write_whole(information / "METADATA", "Metadata-Version: 2.1\nName: hasten-autoload\nVersion: 1\n")
    _write_whole(information / "entry_points.txt", "[torch.backends]\nhasten = hasten_autoload:install\n")
    environment = {**os.environ, **extra}
    for name, separator in JOINED.items():
        if name in extra and os.environ.get(name):
            environment[name] = separator.join((os.environ[name], extra[name]))
    path = [os.fspath(autoload.resolve()), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return environment


def _write_whole(path: Path, text: str) -> None:
    """Another run under the same folder may be reading it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    patience: float,
    longest: float,
    on_status: Callable[[list[object]], object],
) -> int | None:
    """Wait for the windows to fill or the process to end; its exit code, or None when hasten ended it."""
    started = time.monotonic()
    full_at: float | None = None
    stepped = False
    last, moved_at = None, started
    while True:
        code = process.poll()
        statuses = _statuses(folder)
        trained = [s for s in statuses if s[0] != "imported" and s[0] != "loading"]
        done = [s for s in trained if s[0] == "done"]
        stepped = stepped or bool(trained)
        if statuses != last:
            last, moved_at = statuses, time.monotonic()
        if statuses:
            on_status(max(statuses, key=lambda s: (s[1], s[2])))  # type: ignore[arg-type,return-value]
        if code is not None:
            ended_by_us = any(_ended_by_us(path) for path in folder.glob("raw-*.json"))
            return None if ended_by_us and code == 0 else code
        if any(_ended_by_us(path) for path in folder.glob("raw-*.json")):
            full_at = full_at or time.monotonic()
            if len(done) == len(trained) or time.monotonic() - full_at > GRACE:
                # Its own process has left by now, unless a launcher or a parent script waits for others.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.5)
                return None
        elif not stepped and time.monotonic() - started > patience:
            raise NoStepError(_no_step(statuses, patience))
        elif stepped and time.monotonic() - moved_at > STALLS * patience:
            raise NoStepError(f"no further step in {STALLS * patience:.0f} s; it may hang, or raise --wait")
        elif time.monotonic() - started > longest:
            raise NoStepError(f"its steps were not measured within {longest:.0f} s; it may hang")
        time.sleep(0.05)


def _ended_by_us(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8")).get("ended_by") == "hasten"
    return False


def _no_step(statuses: Sequence[Sequence[object]], patience: float) -> str:
    waited = f"no optimizer step in {patience:.0f} s"
    if not statuses:
        return (
            f"{waited}, and no process has finished `import torch`; is this a PyTorch script? "
            "(hasten cannot see into `python -I` or TORCH_DEVICE_BACKEND_AUTOLOAD=0)"
        )
    if any(s[3] for s in statuses):
        return f"{waited}, though backward ran {max(s[3] for s in statuses)} times; raise --wait"  # type: ignore[type-var]
    if any(s[0] == "loading" for s in statuses):
        return f"{waited}, though a loader is being read; if the first step takes longer, raise --wait"
    return f"{waited}; if the script prepares for longer, raise --wait; if it does not train, hasten cannot help"


def _statuses(folder: Path) -> list[list[object]]:
    found: list[list[object]] = []
    for path in folder.glob("status-*"):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(path.read_text(encoding="utf-8")))
    return found


def _stage_lines(folder: Path) -> Iterator[dict[str, object]]:
    for path in folder.glob("stages-*.jsonl"):
        pid = int(path.stem.partition("-")[2])
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # a worker killed while writing leaves half a line
                yield {**json.loads(line), "pid": pid}


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Generator[None]:
    """Being told to end is like Ctrl-C: what was started must not outlive us."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
