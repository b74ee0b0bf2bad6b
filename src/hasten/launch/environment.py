"""The environment in which torch loads hasten, in the launched process and in all that it starts.

The user's variables stay as they are, except for lists that are extended. Only folders of the installed package are put on
a path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hasten.errors import DirectoryError
from hasten.launch.results import make_folder
from hasten.protocol import FOLDER_VARIABLE, SPEC_VARIABLE, LaunchSpec, to_json
from hasten.sandbox.redirect import INSIDE_VARIABLE, VIEW_VARIABLE

# A measured run logs to no tracker. These have a switch of their own; the others are redirected in the child.
TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "DVCLIVE_TEST": "true",
}

JOINED = {"LD_PRELOAD": ":", "PYTORCH_CUDA_ALLOC_CONF": ","}  # variables that hold a list: the user's own stays

AUTOLOAD = Path(__file__).parent / "autoload"  # torch's entry point
EARLY = Path(__file__).parent.parent / "sandbox" / "early"  # a sitecustomize


def environment_for(
    spec: LaunchSpec, folder: Path, extra: Mapping[str, str], *, view: Path | None = None
) -> dict[str, str]:
    """The environment in which a process, and all it starts, does what the spec says; its files go into `view`."""
    environment = plugin_environment({**TRACKERS, **extra}, [EARLY] if view is not None else [])
    environment[SPEC_VARIABLE] = to_json(spec)
    environment[FOLDER_VARIABLE] = os.fspath(folder.resolve())
    environment.pop(INSIDE_VARIABLE, None)  # of a sandbox that hasten itself runs in
    if view is not None:
        environment[VIEW_VARIABLE] = os.fspath(view)
        if spec.sandbox != "overlay":
            environment["TMPDIR"] = os.fspath(make_folder(view / "tmp"))
    return environment


def plugin_environment(extra: Mapping[str, str], folders: Sequence[Path] = ()) -> dict[str, str]:
    """The environment in which torch calls the plug-in at the end of its import; `folders` are on the path as well.

    The plug-in is the last on the path: a device of somebody else's that torch loads as well is in place by then.
    """
    first, last = [os.fspath(folder.resolve()) for folder in folders], os.fspath(AUTOLOAD.resolve())
    if os.pathsep in "".join([*first, last]):
        raise DirectoryError(
            f"hasten is installed in {AUTOLOAD.parent}, and PYTHONPATH cannot hold a {os.pathsep!r}; install it elsewhere"
        )
    environment = {**os.environ, **extra}
    for name, separator in JOINED.items():
        if name in extra and os.environ.get(name):
            environment[name] = separator.join((os.environ[name], extra[name]))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*first, environment.get("PYTHONPATH", ""), last]))
    return environment
