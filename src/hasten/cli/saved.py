"""Find saved runs and tuning runs by id, folder or file; by default the last one."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from hasten.errors import RecordError
from hasten.launch.results import FOLLOWED
from hasten.records import Followed, Run, Settings, Tuning, from_json
from hasten.tuning.plan import script_of

LATEST = 4e9  # seconds since 1970; a later time is corrupt
RUN, TUNING = "run.json", "tuning.json"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A run, and the tuning run that it belongs to."""

    path: Path
    run: Run
    tuning: Tuning | None = None
    after: Run | None = None  # the diagnosed run with the largest part of the plan
    under: Settings = field(default_factory=dict)  # its settings
    followed: tuple[Followed, ...] = ()  # runs of the script with a plan since then, the last first


def find_saved(saved: str | None, *, root: Path) -> Saved:
    """The run or tuning run of this name, or the last one. Raises RecordError if there is none or it cannot be read."""
    path = _last(root) if saved is None else _named(saved, root)
    if path.name != TUNING:
        return Saved(path=path, run=_run(path))
    tuning = from_json(Tuning, path.read_bytes(), source=str(path))
    if not tuning.runs:
        raise RecordError(f"{path} contains no run; tune again")
    runs = path.parent.parent.parent / "runs"
    first = runs / tuning.runs[0] / RUN
    if not first.is_file():
        raise RecordError(f"{path} belongs to a run that was deleted ({first}); tune again")
    after, under = None, {}
    with contextlib.suppress(RecordError, OSError):
        near, settings = nearest_run(tuning)
        if near is not None:
            after, under = _run(runs / near / RUN), settings
    followed = _followed(tuning, path.parent.parent.parent / FOLLOWED)
    return Saved(path=path, run=_run(first), tuning=tuning, after=after, under=under, followed=followed)


def _followed(tuning: Tuning, path: Path) -> tuple[Followed, ...]:
    """Runs of the same script, with any arguments, that ended after the tuning run started; the last first."""
    lines: list[bytes] = []
    with contextlib.suppress(OSError):
        lines = path.read_bytes().splitlines()
    found: list[Followed] = []
    for line in reversed(lines):
        # A line may be truncated or corrupt, which must not make the report fail.
        with contextlib.suppress(RecordError, ValueError, RecursionError):
            found.append(from_json(Followed, line))
    folder, script = path.parent.parent, script_of(tuning.command)  # both were started in it
    return tuple(one for one in found if _same(one.script, script, folder) and tuning.started < one.ended < LATEST)


def _same(one: str, other: str, folder: Path) -> bool:
    """Whether both are the same script or module."""
    return one == other or (bool(one and other) and (folder / one).resolve() == (folder / other).resolve())


def nearest_run(tuning: Tuning) -> tuple[str | None, Settings]:
    """The id of the run with the largest part of the plan's settings and no others, and those settings; None without one."""
    plan = tuning.settings.items()
    made = [(id, on) for id, on in zip(tuning.runs, tuning.run_settings) if on and on.items() <= plan]
    return max(made, key=lambda one: len(one[1]), default=(None, {}))


def _run(path: Path) -> Run:
    run = from_json(Run, path.read_bytes(), source=str(path))
    if not run.steps:
        raise RecordError(f"{path} contains no steps; measure again")
    return run


def _last(root: Path) -> Path:
    """The newest result of both kinds; a tuning run ends after its own runs."""
    found = [*(root / "runs").glob(f"*/{RUN}"), *(root / "tunings").glob(f"*/{TUNING}")]
    if not found:
        raise RecordError("no saved run here; `hasten diagnose SCRIPT` makes one")
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def _named(saved: str, root: Path) -> Path:
    given = Path(saved)
    places = [given, given / RUN, given / TUNING, root / "runs" / saved / RUN, root / "tunings" / saved / TUNING]
    for path in places:
        if path.is_file():
            return path
    raise RecordError(f"no such run: {saved}; `ls {root / 'runs'} {root / 'tunings'}` lists the saved runs")
