"""What runs in the user's process at the end of `import torch`: it starts a measurement, or applies a plan.

It must never break the script. If anything fails here, one line on standard error says so, and training continues without
hasten.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.process
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hasten.protocol import FOLDER_VARIABLE, SPEC_VARIABLE, FixesReport, LaunchSpec, SandboxForm, from_json, write

if TYPE_CHECKING:
    from hasten.agent.session import Session
    from hasten.patches import Patches

PHRASES = (  # of the CPU's allocator, and of libraries'
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)

_installed = False


def install() -> None:
    """Begin to measure this process, or to follow a plan, if it was asked for. Called by torch's backend autoload."""
    global _installed
    folder, text = os.environ.get(FOLDER_VARIABLE), os.environ.get(SPEC_VARIABLE)
    if _installed or text is None:
        return
    _installed = True
    try:
        spec = from_json(LaunchSpec, text, source=SPEC_VARIABLE)
        if folder is not None:
            _at_every_end(*begin(Path(folder), spec))
        else:
            from hasten.agent.following import follow

            follow(spec)
    except Exception as error:
        what = "not measured" if folder is not None else "not under the plan"
        sys.stderr.write(f"hasten: this process is {what} ({error!r})\n")


def begin(folder: Path, spec: LaunchSpec) -> tuple[Session, Patches]:
    """Put the hooks on, and have messages written into the folder; `patches.undo()` takes the hooks off again."""
    from hasten.patches import Patches

    patches = Patches()
    try:
        return _begin(folder, spec, patches), patches
    except BaseException:
        patches.undo()
        raise


def _begin(folder: Path, spec: LaunchSpec, patches: Patches) -> Session:
    from hasten.agent import facts, hooks, readouts, saving, workers
    from hasten.agent.communication import Communication
    from hasten.agent.instant import InstantSamples
    from hasten.agent.marks import Marks
    from hasten.agent.models import Models
    from hasten.agent.schedule import program_of
    from hasten.agent.segments import History
    from hasten.agent.session import Session
    from hasten.sandbox import redirect

    if spec.sockets is not None:
        # Workers that are ended with the window leave their socket folder behind: it shall be one of the launch's.
        multiprocessing.process.current_process()._config["tempdir"] = spec.sockets  # type: ignore[attr-defined]
    marks, history = Marks(), History()
    if spec.quality is None:  # of a comparison only the step's time and the training's course are wanted
        workers.install(folder, patches, instant=InstantSamples(folder) if spec.interventions.instant else None)
    session = Session(folder, history=history, marks=marks, models=Models(patches))
    hooks.install(session, patches)
    session.communication = Communication(marks, patches)
    if spec.quality is None:
        readouts.install(marks, patches)
    saving.install(marks, patches)
    if spec.sandbox is not None:
        session.redirected_late = _keep_out(spec.sandbox, folder, patches)
        session.outside_sandbox = spec.sandbox == "overlay" and not redirect.is_inside()
    session.launcher = spec.launcher
    session.models.discover()
    session.scheduler.follow(program_of(spec, session, patches))
    session.gather_facts = facts.gather
    _compare(spec, session, patches)
    return session


def _keep_out(sandbox: SandboxForm, folder: Path, patches: Patches) -> bool:
    """What is left to do in this process so that nothing of a launch stays; whether writes were real until now."""
    from hasten.agent import saving
    from hasten.sandbox import redirect

    saving.log_to(folder, patches)
    if sandbox == "overlay" and redirect.is_inside():
        saving.rename_as_on_one_disk(patches)
        return False
    return redirect.install_from_environment()  # Python was started without looking for a sitecustomize


def _compare(spec: LaunchSpec, session: Session, patches: Patches) -> None:
    """What a comparison of two ways to train needs: fixes, seeds, few batches, and the quality watched."""
    if spec.fixes:
        from hasten.agent.handle import enable_all

        not_applied: dict[str, str] = {}

        def report(name: str, reason: str) -> None:
            not_applied[name] = reason
            with contextlib.suppress(OSError):
                write(FixesReport(not_applied=not_applied), session.folder)

        enable_all(spec.fixes, session.models, patches, report=report)
    if spec.seed is not None:
        from hasten.agent.seeding import seed_everything

        seed_everything(spec.seed, shift=spec.shift, patches=patches)
    for number, ends in ((spec.repeated_batches, False), (spec.epoch_batches, True)):
        if number is not None:
            from hasten.agent.batches import repeat_batches

            repeat_batches(number, patches, ends=ends)
    if spec.repeated_batches is not None:
        session.scheduler.cold = lambda: session.scheduler.num_steps < spec.warm_steps
        session.scheduler.longest_warm_up = spec.warm_seconds
    if spec.quality is not None:
        from hasten.agent.quality import Quality

        session.quality = Quality(patches, num_batches=spec.quality, perturb=spec.perturb)
        if spec.own_samples:
            from hasten.agent.batches import OwnSamples

            session.own_samples = OwnSamples(patches, num_batches=spec.quality)


def _at_every_end(session: Session, patches: Patches) -> None:
    """Have the record written however the process ends, short of a signal."""
    from hasten.agent.frames import cut_chain, without_ours
    from hasten.agent.status import let_threads_end

    atexit.register(let_threads_end)
    atexit.register(session.end_with_script)
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=session.forked)
    leave = os._exit

    def _exit(code: int) -> None:
        # Children of multiprocessing end here, and so do scripts that want to be gone at once.
        session.end_with_script()
        leave(code)

    patches.set(os, "_exit", _exit)
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _ran_out(error):
            session.finish("out of memory")
        cut_chain(error)
        previous(kind, error, without_ours(trace))

    sys.excepthook = excepthook


def _ran_out(error: BaseException) -> bool:
    """Whether an exception says that there is no memory left."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in PHRASES)
