"""What torch calls at the end of its import, in every process whose PYTHONPATH names this folder.

The environment need not have hasten installed: the package is found next to this folder.
"""

import importlib.util
import os
import sys


def install() -> None:
    """Begin to measure this process, or to follow a plan."""
    if importlib.util.find_spec("hasten") is None:
        sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))
    from hasten.agent.child import install

    install()
