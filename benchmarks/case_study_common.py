"""What the questions about the case studies share: where their images lie, scratch folders, commands and figures."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from hasten.stats import Estimate

FOLDERS = {"xray": "xray", "feed": "photos", "superres": "sr", "efficient": "tiny", "classify": "photos"}


QUIET_SECONDS = 2.5  # in which a file must not have changed to be cached


def hasten(*words: object) -> list[str]:
    return [sys.executable, "-m", "hasten", *map(str, words)]


@contextlib.contextmanager
def scratch() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hasten-bench-case-studies-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def copies(folder: Path, times: int) -> Generator[Path]:
    """A folder with so many copies of another, each file a file of its own: links would be cached once for all."""
    with scratch() as made:
        for number in range(times):
            shutil.copytree(folder, made / str(number))
        time.sleep(QUIET_SECONDS)
        yield made


def shown(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
