"""What the questions about the stories share: where their photographs lie, scratch folders, commands and figures."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

from hasten.stats import Estimate

FOLDERS = {"xray": "xray", "feed": "photos", "superres": "sr", "efficient": "tiny", "classify": "photos"}


def hasten(*words: object) -> list[str]:
    return [sys.executable, "-m", "hasten", *map(str, words)]


@contextlib.contextmanager
def scratch() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hasten-bench-stories-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shown(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
