"""Runs and searches that are kept, found by what a user calls them.

In: an id, a folder or a file; nothing means the last. Out: the records. Refuses torn, foreign and empty ones in one line.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from hasten.errors import RecordError
from hasten.measurement.results import FOLLOWED
from hasten.records import Followed, Run, Settings, Tuning, from_json
from hasten.tuning.plan import script_of

LATEST = 4e9  # seconds since 1970: no run of this century's ends later
RUN, TUNING = "run.json", "tuning.json"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A run, and the search that it began."""

    path: Path
    run: Run
    tuning: Tuning | None = None
    after: Run | None = None  # the diagnosed run that had most of the plan, and nothing else
    under: Settings = field(default_factory=dict)  # what it had
    followed: tuple[Followed, ...] = ()  # runs of the script under a plan since, the last first


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
    after, under = None, {}
    with contextlib.suppress(RecordError, OSError):
        near, settings = nearest_run(tuning)
        if near is not None:
            after, under = _run(runs / near / RUN), settings
    followed = _followed(tuning, path.parent.parent.parent / FOLLOWED)
    return Saved(path=path, run=_run(first), tuning=tuning, after=after, under=under, followed=followed)


def _followed(tuning: Tuning, path: Path) -> tuple[Followed, ...]:
    """Runs of the same script that ended after the search began, whatever its arguments were; the last first."""
    lines: list[bytes] = []
    with contextlib.suppress(OSError):
        lines = path.read_bytes().splitlines()
    found: list[Followed] = []
    for line in reversed(lines):
        # A full disk tears a line; and nobody's report should fail for what others wrote into the file.
        with contextlib.suppress(RecordError, ValueError, RecursionError):
            found.append(from_json(Followed, line))
    folder, script = path.parent.parent, script_of(tuning.command)  # both were started there
    return tuple(one for one in found if _same(one.script, script, folder) and tuning.started < one.ended < LATEST)


def _same(one: str, other: str, folder: Path) -> bool:
    """Whether both name one script, or one module."""
    return one == other or (bool(one and other) and (folder / one).resolve() == (folder / other).resolve())


def nearest_run(tuning: Tuning) -> tuple[str | None, Settings]:
    """The id of the run that was made under most of the plan's settings and no other (None: there is none), and those."""
    plan = tuning.settings.items()
    made = [(id, on) for id, on in zip(tuning.runs, tuning.run_settings) if on and on.items() <= plan]
    return max(made, key=lambda one: len(one[1]), default=(None, {}))


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
