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

    path = _named("last" if saved is None else saved, root)
    if path.name != TUNING:
        return Saved(path=path, run=_run(path))
    tuning = from_json(Tuning, _read(path), source=str(path))
    if not tuning.runs:
        raise RecordError(f"{path} contains no run; tune again")
    place = path.resolve().parent.parent.parent
    runs = place / "runs"
    first = runs / tuning.runs[0] / RUN
    if not first.is_file():
        raise RecordError(f"{path} belongs to a run that was deleted ({first}); tune again")
    after, under = None, {}
    with contextlib.suppress(RecordError, OSError):
        near, settings = nearest_run(tuning)
        if near is not None:
            after, under = _run(runs / near / RUN), settings
    followed = _followed(tuning, place / FOLLOWED)
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

    run = from_json(Run, _read(path), source=str(path))
    if not run.steps:
        raise RecordError(f"{path} contains no steps; measure again")
    return run


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}); check its permissions") from None


def results(root: Path) -> list[Path]:
    """The records of all results, the newest first, without the runs that tuning runs are made of."""
    found = [*(root / "runs").glob(f"*/{RUN}"), *(root / "tunings").glob(f"*/{TUNING}")]
    inner = {id for path in found if path.name == TUNING for id in runs_of(path)}
    times: dict[Path, int] = {}
    for path in found:
        if path.name == TUNING or path.parent.name not in inner:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                times[path] = path.stat().st_mtime_ns
    return sorted(times, key=lambda path: times[path], reverse=True)


def runs_of(tuning: Path) -> tuple[str, ...]:
    """The ids of the runs that a tuning run is made of; none if its record cannot be read."""
    from hasten.records import Tuning, from_json

    try:
        return from_json(Tuning, tuning.read_bytes(), source=str(tuning)).runs
    except (RecordError, OSError):
        return ()


@dataclass(frozen=True)
class Line:
    """One saved result, as `hasten report --list` shows it."""

    id: str
    when: float  # seconds since 1970
    command: tuple[str, ...]
    result: str


def saved_lines(root: Path) -> Iterator[Line]:
    """A line for each result, the newest first."""
    from hasten.measurement.diagnose import diagnose
    from hasten.records import Tuning, from_json
    from hasten.reports.tuning import headline

    for path in results(root):
        name, when, command = path.parent.name, path.stat().st_mtime, ()
        try:
            if path.name == TUNING:
                tuning = from_json(Tuning, path.read_bytes(), source=str(path))
                command, result = tuning.command, f"Tuned: {headline(tuning)}"
            else:
                run = _run(path)
                command, result = run.command, diagnose(run).verdict
        except (RecordError, OSError) as error:
            result = f"cannot be read: {error}"
        yield Line(name, when, command, result)


def path_of(saved: str, root: Path) -> Path | None:
    """The record of this name: a file, a folder, an id, `last` or `last~N`; None if there is none."""
    given = Path(saved)
    places = [given, given / RUN, given / TUNING, root / "runs" / saved / RUN, root / "tunings" / saved / TUNING]
    found = next((path for path in places if saved and path.is_file()), None)
    last = re.fullmatch(r"last(?:~(\d+))?", saved)
    if found is None and last is not None:
        kept, back = results(root), int(last[1] or 0)
        return kept[back] if back < len(kept) else None
    return found


def _named(saved: str, root: Path) -> Path:
    if saved.endswith(".py") and Path(saved).is_file():
        raise RecordError(f"{saved} is a script, not a saved run; `hasten diagnose {saved}` measures it")
    found = path_of(saved, root)
    if found is not None:
        return found
    if saved.startswith("last"):
        number = len(results(root))
        if not number:
            raise RecordError("no saved run here; `hasten diagnose SCRIPT` makes one")
        raise RecordError(f"no such run: {saved}; only {number} are saved here")
    raise RecordError(f"no such run: {saved or repr(saved)}; `hasten report --list` lists the saved runs")
