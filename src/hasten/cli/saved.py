"""Saved results: find one by its name, and list them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import RecordError
from hasten.launch.results import FOLLOWED

if TYPE_CHECKING:
    from hasten.records import PlannedRunRecord, Run, Settings, Tuning

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
    followed: tuple[PlannedRunRecord, ...] = ()  # runs of the script with a plan since then, the last first


def find_saved(saved: str | None, *, root: Path) -> Saved:
    """The run or tuning run of this name, or the last one. Raises RecordError if there is none or it cannot be read."""
    from hasten.records import Tuning, from_json

    path = _named(saved or "last", root)
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


def _followed(tuning: Tuning, path: Path) -> tuple[PlannedRunRecord, ...]:
    """Runs of the same script, with any arguments, that ended after the tuning run started; the last first."""
    from hasten.records import PlannedRunRecord, from_json
    from hasten.tuning.plan import script_of

    lines: list[bytes] = []
    with contextlib.suppress(OSError):
        lines = path.read_bytes().splitlines()
    found: list[PlannedRunRecord] = []
    for line in reversed(lines):
        # A line may be truncated or corrupt, which must not make the report fail.
        with contextlib.suppress(RecordError, ValueError, RecursionError):
            found.append(from_json(PlannedRunRecord, line))
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
    from hasten.records import Run, from_json

    run = from_json(Run, path.read_bytes(), source=str(path))
    if not run.steps:
        raise RecordError(f"{path} contains no steps; measure again")
    return run


def saved_paths(root: Path) -> list[Path]:
    """The records of all results, the newest first; a tuning run ends after its own runs."""
    found = [*(root / "runs").glob(f"*/{RUN}"), *(root / "tunings").glob(f"*/{TUNING}")]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)


@dataclass(frozen=True)
class Line:
    """One saved result, as `hasten report --list` shows it."""

    id: str
    when: float  # seconds since 1970
    command: tuple[str, ...]
    result: str


def saved_lines(root: Path) -> Iterator[Line]:
    """A line for each saved result, the newest first; the runs that a tuning run made for itself have none."""
    from hasten.measurement.diagnose import diagnose
    from hasten.records import Tuning, from_json
    from hasten.reports.tuning import headline

    inner: set[str] = set()
    for path in saved_paths(root):
        when = path.stat().st_mtime
        try:
            if path.name == TUNING:
                tuning = from_json(Tuning, path.read_bytes(), source=str(path))
                inner.update(tuning.runs)
                yield Line(path.parent.name, when, tuning.command, f"Tuned: {headline(tuning)}")
            elif path.parent.name not in inner:
                run = _run(path)
                yield Line(path.parent.name, when, run.command, diagnose(run).verdict)
        except (RecordError, OSError) as error:
            yield Line(path.parent.name, when, (), f"cannot be read: {error}")


def _named(saved: str, root: Path) -> Path:
    given = Path(saved)
    if given.suffix == ".py" and given.is_file():
        raise RecordError(f"{saved} is a script, not a saved run; `hasten diagnose {saved}` measures it")
    places = [given, given / RUN, given / TUNING, root / "runs" / saved / RUN, root / "tunings" / saved / TUNING]
    for path in places:
        if path.is_file():
            return path
    last = re.fullmatch(r"last(?:~(\d+))?", saved)
    kept = saved_paths(root)
    if last is None:
        raise RecordError(f"no such run: {saved}; `hasten report --list` lists the saved runs")
    if not kept:
        raise RecordError("no saved run here; `hasten diagnose SCRIPT` makes one")
    back = int(last[1] or 0)
    if back >= len(kept):
        raise RecordError(f"no such run: {saved}; only {len(kept)} are saved here")
    return kept[back]
