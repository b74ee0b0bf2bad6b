"""Runs and searches that are kept, found by what a user calls them.

In: an id, a folder or a file; nothing means the last. Out: the records. Refuses torn, foreign and empty ones in one line.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from hasten.errors import RecordError
from hasten.records import Run, Tuning, from_json

RUN, TUNING = "run.json", "tuning.json"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A run, and the search that it began."""

    path: Path
    run: Run
    tuning: Tuning | None = None
    after: Run | None = None  # the last run that was diagnosed in the search, under what had been kept by then


def find_saved(saved: str | None, *, root: Path) -> Saved:
    """The run or search of this name. Raises RecordError."""
    path = _last(root) if saved is None else _named(saved, root)
    if path.name != TUNING:
        return Saved(path=path, run=_run(path))
    tuning = from_json(Tuning, path.read_bytes(), source=str(path))
    if not tuning.runs:
        raise RecordError(f"{path} holds no run; search again")
    runs = path.parent.parent.parent / "runs"
    first = runs / tuning.runs[0] / RUN
    if not first.is_file():
        raise RecordError(f"{path} is of a run that is gone ({first}); search again")
    after = None
    if len(tuning.runs) > 1:
        with contextlib.suppress(RecordError, OSError):
            after = _run(runs / tuning.runs[-1] / RUN)
    return Saved(path=path, run=_run(first), tuning=tuning, after=after)


def _run(path: Path) -> Run:
    run = from_json(Run, path.read_bytes(), source=str(path))
    if not run.steps:
        raise RecordError(f"{path} holds no steps; measure again")
    return run


def _last(root: Path) -> Path:
    """The newest of both kinds: a search ends after the runs that were made in it."""
    found = [*(root / "runs").glob(f"*/{RUN}"), *(root / "tunings").glob(f"*/{TUNING}")]
    if not found:
        raise RecordError("no run is kept here; `hasten diagnose SCRIPT` makes one")
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def _named(saved: str, root: Path) -> Path:
    given = Path(saved)
    places = [given, given / RUN, given / TUNING, root / "runs" / saved / RUN, root / "tunings" / saved / TUNING]
    for path in places:
        if path.is_file():
            return path
    raise RecordError(f"no such run: {saved}; `ls {root / 'runs'} {root / 'tunings'}` shows those kept here")
