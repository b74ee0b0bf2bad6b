"""The environment in which torch calls the plug-in, in the launched process and in all that it starts.

In: a folder, and variables. Out: an environment. Refuses to change the user's own variables, but for lists that it joins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hasten.errors import DirectoryError
from hasten.measurement.inside.child import FOLDER_VARIABLE
from hasten.measurement.results import make_folder

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
