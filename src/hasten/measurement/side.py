"""One side of a comparison: the script in a fresh process under some settings, for a few seconds.

In: a command, what its processes are told, an environment. Out: what a step took and what training did to the model.
Refuses to compare.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hasten.errors import NoStepError
from hasten.measurement.folding import FoldedStep, epoch_starts, segment_means
from hasten.measurement.inside.programs import PLAIN
from hasten.measurement.launch import Outcome, launch, make_folder
from hasten.measurement.recorder import Recorded
from hasten.records import RARE, Facts

REGULAR = "regular"


class SideError(Exception):
    """The script did not train under these settings; the message says how it failed."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one launch told."""

    parts: Mapping[str, float]  # seconds: of a regular step, and of each rare phase whenever it comes
    num_steps: int
    samples_per_step: float | None
    startup_seconds: float  # from the start of the process to the end of its warm-up
    peak_bytes: float
    fixes: Mapping[str, str] = field(default_factory=dict)  # of each: "on", or why it is not
    quality: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class Frequencies:
    """How often the rare phases come, by the step: the script's own rhythm, which no fix changes."""

    by_phase: Mapping[str, float]

    @staticmethod
    def of(facts: Facts) -> Frequencies:
        """Those of a measured run."""
        periods = {
            "epoch_start": facts.steps_per_epoch,
            "validation": facts.steps_per_validation,
            "checkpoint": facts.steps_per_checkpoint,
        }
        return Frequencies(by_phase={phase: 1 / period for phase, period in periods.items() if period})

    def step_seconds(self, seen: Seen, *, phases: Sequence[str]) -> float:
        """Seconds a step, the rare phases among `phases` with their share."""
        return seen.parts[REGULAR] + sum(self.by_phase.get(p, 0.0) * seen.parts.get(p, 0.0) for p in phases)


class Bench:
    """Runs sides of one command, each in a folder that is gone afterwards."""

    def __init__(self, command: Sequence[str], folder: Path, *, patience: float) -> None:
        self.command = command
        self.folder = folder
        self.patience = patience
        self._num_launches = 0

    def run(
        self,
        *,
        spec: Mapping[str, object],
        environment: Mapping[str, str],
        on_status: Callable[[list[object]], object] = lambda _: None,
    ) -> Seen:
        """One launch. Raises SideError where the script does not train in it."""
        self._num_launches += 1
        folder = make_folder(self.folder / f"side-{self._num_launches}")
        patience = self.patience + float(spec.get("start_seconds", 0.0))  # type: ignore[arg-type]
        path = folder / "output.txt"
        try:
            with path.open("wb") as output:
                outcome = launch(
                    self.command,
                    spec={**spec, "quiet": True},
                    folder=folder,
                    environment=environment,
                    output=output.fileno(),
                    patience=patience,
                    longest=patience + 4 * float(spec["seconds"]) + float(spec.get("warm_seconds", 0.0)),  # type: ignore[arg-type]
                    on_status=on_status,
                )
            return _seen(outcome, folder, path)
        except NoStepError as error:
            raise SideError(str(error)) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _seen(outcome: Outcome, folder: Path, output: Path) -> Seen:
    fixes: dict[str, str] = {}
    for path in folder.glob("fixes-*.json"):  # of several processes, the one that trains puts on most
        states = json.loads(path.read_text(encoding="utf-8"))
        fixes.update({name: state for name, state in states.items() if fixes.get(name, "on") == "on"})
    said = output.read_text(encoding="utf-8", errors="replace")
    if outcome.exit_code not in (0, None):
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
        raise SideError(f"the script failed (exit code {outcome.exit_code}): {_plain(last)[:200]}")
    trained = [raw for raw in outcome.raws if raw["first_step_at"] is not None]
    if not trained:
        raise SideError("no optimizer step was seen")
    raw = max(trained, key=lambda raw: (len(raw["bounds"]), -raw["rank"]))
    recorded = Recorded(raw, [], exit_code=outcome.exit_code)
    if not recorded.measured:
        raise SideError("the script ended before its steps could be measured")
    if raw["extra"].get("trouble"):
        raise SideError(f"it could not be measured: {raw['extra']['trouble']}")
    began = raw["started_at"] if raw["started_at"] is not None else recorded.measured[0].start
    samples = [s.num_samples for s in recorded.measured if s.num_samples is not None]
    return Seen(
        parts=_parts(recorded.steps if recorded.steps else recorded.measured),
        num_steps=len(recorded.measured),
        samples_per_step=statistics.fmean(samples) if samples else None,
        startup_seconds=began - outcome.started,
        peak_bytes=max((s.resident_bytes for s in outcome.samples), default=0.0),
        fixes=fixes,
        quality=raw.get("quality", {}),
        output=said,
    )


def _plain(line: str) -> str:
    """A line without colours and other control characters."""
    return "".join(c for c in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) if c.isprintable()).strip()


def _parts(steps: Sequence[FoldedStep]) -> dict[str, float]:
    counted = [s for s in steps if s.counted]
    # A segment's mean is stalled by whatever else the machine does; half of the segments are not.
    means = segment_means(counted, PLAIN) or [s.regular for s in counted]
    parts = {REGULAR: statistics.median(means)}
    starts = epoch_starts(counted)
    if starts:
        parts["epoch_start"] = statistics.fmean(starts)
    for phase in RARE:
        times = [s.phases[phase] for s in counted if s.phases.get(phase)]
        if times and phase != "epoch_start":
            parts[phase] = statistics.fmean(times)
    return parts
