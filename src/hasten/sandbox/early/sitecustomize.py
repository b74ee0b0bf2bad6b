"""What Python imports at its start in every process of a launch: file writes are redirected where no overlay takes them.

The user's own sitecustomize runs first.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_other() -> None:
    others = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _install() -> None:
    if importlib.util.find_spec("hasten") is None:
        sys.path.append(os.path.abspath(os.path.join(HERE, "..", "..", "..")))
    from hasten.sandbox.redirect import install_from_environment

    install_from_environment()


def _is_inside() -> bool:  # as in `redirect`, without importing anything
    try:
        return os.environ.get("HASTEN_INSIDE") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


_run_the_other()
if not _is_inside():
    _install()
