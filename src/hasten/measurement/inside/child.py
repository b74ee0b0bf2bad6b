"""Inside the measured process, at the end of `import torch`.

In: the run's folder, named by the environment. Out: hooks in place, and a session that ends by itself. Refuses to
break the script: whatever goes wrong here is one line on standard error, and training goes on unmeasured.
"""

from __future__ import annotations

import atexit
import importlib
import json
import multiprocessing.process
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.agent.patches import Patches
    from hasten.measurement.inside.session import Session

FOLDER_VARIABLE = "HASTEN_RUN_FOLDER"
OUT_OF_MEMORY = "out of memory"  # what ended a process, beside "hasten" and "script"
PLAN_VARIABLE = "HASTEN_PLAN"  # a run under a plan, which is not measured: its spec, as JSON

_installed = False


def install() -> None:
    """Begin to measure this process, or to follow a plan, if it was asked for. Called by torch's backend autoload."""
    global _installed
    folder, plan = os.environ.get(FOLDER_VARIABLE), os.environ.get(PLAN_VARIABLE)
    if _installed or (folder is None and plan is None):
        return
    _installed = True
    try:
        if folder is not None:
            _at_every_end(*begin(Path(folder)))
        elif plan is not None:
            from hasten.measurement.inside.following import follow

            follow(json.loads(plan))
    except Exception as error:
        what = "not measured" if folder is not None else "not under the plan"
        sys.stderr.write(f"hasten: this process is {what} ({error!r})\n")


def begin(folder: Path) -> tuple[Session, Patches]:
    """Put the hooks on, as the folder's `spec.json` says; `patches.undo()` takes them off again."""
    from hasten.agent.patches import Patches
    from hasten.measurement.inside import facts, hooks, readouts, saving, workers
    from hasten.measurement.inside.marks import Marks
    from hasten.measurement.inside.programs import History
    from hasten.measurement.inside.roots import Roots
    from hasten.measurement.inside.schedule import program_of
    from hasten.measurement.inside.session import Session

    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    if "sockets" in spec:
        # Workers that are ended with the window leave their socket folder behind: it shall be one of the launch's.
        multiprocessing.process.current_process()._config["tempdir"] = spec["sockets"]  # type: ignore[attr-defined]
    patches, marks, history = Patches(), Marks(), History()
    if "quality" not in spec:  # of a comparison only the step's time and the training's course are wanted
        workers.install(folder, patches)
    session = Session(folder, history=history, marks=marks)
    hooks.install(session, patches)
    if "quality" not in spec:
        readouts.install(marks, patches)
    saving.install(marks, patches)
    if "sandbox" in spec:
        _keep_out(spec["sandbox"], folder, patches)
    session.launcher = spec.get("launcher")
    session.roots = Roots(marks, patches)
    session.roots.discover()
    session.course.follow(program_of(spec, session, patches))
    session.on_finish = facts.gather
    _compare(spec, session, patches)
    return session, patches


def _keep_out(sandbox: str, folder: Path, patches: Patches) -> None:
    """What is left to do in this process that nothing of a launch stays."""
    from hasten.measurement.inside import saving
    from hasten.measurement.sandbox import redirect

    saving.log_to(folder, patches)
    if sandbox == "overlay":
        saving.rename_as_on_one_disk(patches)
    else:
        redirect.install_from_environment()  # where Python was started without looking for a sitecustomize


def _compare(spec: Mapping[str, Any], session: Session, patches: Patches) -> None:
    """What a comparison of two ways to train needs: plug-ins by name, seeds, few batches, and the quality watched."""
    for plugin in spec.get("plugins", []):
        module, _, function = plugin.partition(":")
        getattr(importlib.import_module(module), function)(spec, session.folder, patches)
    if "seed" in spec:
        from hasten.measurement.inside.seeding import seed_everything

        seed_everything(spec["seed"], shift=spec.get("shift", 0), patches=patches)
    if "repeated_batches" in spec:
        from hasten.measurement.inside.few_batches import repeat_batches

        repeat_batches(spec["repeated_batches"], patches, ends=False)
        session.course.cold = lambda: len(session.course.bounds) < spec["warm_steps"]
        session.course.longest_warm_up = spec["warm_seconds"]
    if "epoch_batches" in spec:
        from hasten.measurement.inside.few_batches import repeat_batches

        repeat_batches(spec["epoch_batches"], patches, ends=True)
    if "quality" in spec:
        from hasten.measurement.inside.quality import Quality

        session.quality = Quality(patches, num_batches=spec["quality"], perturb=spec.get("perturb", False))
    if spec.get("own_samples"):
        from hasten.measurement.inside.own_samples import OwnSamples

        session.own_samples = OwnSamples(patches, num_batches=spec["quality"])


def _at_every_end(session: Session, patches: Patches) -> None:
    """Have the record written however the process ends, short of a signal."""
    from hasten.measurement.inside.frames import without_ours
    from hasten.measurement.inside.shortage import ran_out

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
        if ran_out(error):
            session.finish(OUT_OF_MEMORY)
        chained: BaseException | None = error
        while chained is not None:
            chained.__traceback__ = without_ours(chained.__traceback__)
            chained = chained.__cause__ or chained.__context__
        previous(kind, error, without_ours(trace))

    sys.excepthook = excepthook
