"""A bench for the launches of one benchmark, in a scratch folder that is gone when the benchmark ends."""

from __future__ import annotations

import atexit
from collections.abc import Sequence

from hasten.launch.side import Bench
from hasten.sandbox.workspace import Workspace


def bench_of(command: Sequence[str]) -> Bench:
    """Where sides of this command are launched."""
    workspace = Workspace().__enter__()
    atexit.register(workspace.__exit__)
    return Bench(command, workspace, patience=120.0)
