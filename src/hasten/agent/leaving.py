"""How a measured process ends once its window is full.

In: the process id of whoever launched it. Out: nothing of it is left. Refuses to run what comes after the loop.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

WAIT_FOR_END = 15.0  # seconds


def leave(launcher: int | None) -> None:
    """End this process and its children without running what comes after the training loop."""
    import multiprocessing

    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    deadline = time.monotonic() + 2.0
    for child in children:
        child.join(timeout=max(0.05, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if launcher is not None and os.getppid() != launcher:
        # A shell or a launcher waits for this process, and would go on with its next line: hasten ends them first.
        time.sleep(WAIT_FOR_END)
    os._exit(0)
