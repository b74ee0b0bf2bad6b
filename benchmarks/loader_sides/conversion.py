"""Data sets in a peer's own format: written once, kept in the scratch folder, never in a timed window."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from loader_sides.job import Job


def converted(job: Job, name: str, write: Callable[[Path], None]) -> Path:
    """The folder that `write` filled, now or in an earlier run; beside it a note of what the writing took."""
    source = json.dumps([job.data, job.photos, job.xray, job.num_samples])
    folder = Path(job.scratch) / f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    note = folder.with_suffix(".json")
    if not note.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        start = time.perf_counter()
        write(folder)
        seconds = time.perf_counter() - start
        num_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        note.write_text(json.dumps({"seconds": seconds, "bytes": num_bytes}))
    return folder
