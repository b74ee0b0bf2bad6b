import gc
import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

sys.path.append(str(Path(__file__).parent))  # for samples.py


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Check that no process, thread or shared memory of the loader outlives a test."""
    before = _held()
    yield
    until = time.monotonic() + 10.0
    while _held() - before and time.monotonic() < until:
        gc.collect()  # a caught exception holds its frames, which hold the iterator
        time.sleep(0.02)
    assert _held() - before == set()


def _held() -> set[object]:
    names = {
        path.name for path in Path("/dev/shm").glob("*") if path.name.startswith(("hasten", f"torch_{os.getpid()}_"))
    }
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("hasten")}
    # Helper processes that start others, Python's and the tests', stay until the interpreter exits.
    children = {child.pid for child in psutil.Process().children(recursive=True) if not _is_pythons_own(child)}
    return children | names | threads


def _is_pythons_own(child: psutil.Process) -> bool:
    try:
        return any(name in " ".join(child.cmdline()) for name in ("resource_tracker", "forkserver", "warm.py"))
    except psutil.NoSuchProcess:
        return True
