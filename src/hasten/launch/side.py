"""One side of a comparison: the script in a fresh process with some settings, for a few seconds.

The result is the step time and what training did to the model. Two sides may take turns; then the machine's speed affects
both alike.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import shutil
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hasten.errors import NoStepError
from hasten.launch.folding import FoldedStep, epoch_starts, segment_means
from hasten.launch.launch import OUTPUT, Launch
from hasten.launch.recorder import Recorded
from hasten.launch.turns import NoTurnsError, take_turns
from hasten.protocol import FixesReport, LaunchSpec, files_of, read
from hasten.raw_run import PLAIN, RawQuality, RawRun, busiest
from hasten.records import RARE, Facts
from hasten.sandbox.workspace import Workspace

REGULAR = "regular"


class SideError(Exception):
    """The script did not train under these settings; the message says how it failed."""


class BaselineError(SideError):
    """The baseline did not train in this launch, which says nothing about a plan."""


class NotAppliedError(SideError):
    """A setting could not be applied; the message says why."""


@dataclass(frozen=True, kw_only=True)
class SideResult:
    """The result of one launch."""

    parts: Mapping[str, float]  # seconds: of a regular step, and of each rare phase whenever it comes
    segments: Sequence[float] = ()  # mean seconds of the regular steps in each, in their order
    num_steps: int
    samples_per_step: float | None
    startup_seconds: float  # from the start of the process to the end of its warm-up
    peak_bytes: float
    quality: RawQuality = field(default_factory=RawQuality)
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

    def step_seconds(self, seen: SideResult, *, phases: Sequence[str], growth: float = 1.0) -> float:
        """Seconds a step, the rare phases among `phases` with their share.

        `growth`: how many steps' work one of its steps does; rare phases come as often as before by the work.
        """
        return seen.parts[REGULAR] / growth + sum(self.by_phase.get(p, 0.0) * seen.parts.get(p, 0.0) for p in phases)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a whole run printed, and when."""

    text: str
    grown: Sequence[tuple[float, int]]  # (seconds since the command's start, characters that were there by then)
    seconds: float

    def seconds_at(self, end: int) -> float:
        """When the text was there up to `end`."""
        return next((seconds for seconds, length in self.grown if length >= end), self.seconds)


class Bench:
    """Runs sides of one command, each in a folder that is gone afterwards."""

    def __init__(self, command: Sequence[str], workspace: Workspace, *, patience: float) -> None:
        self.command = command
        self.workspace = workspace
        self.patience = patience
        self.takes_turns = True  # until the script is seen not to run twice at once

    @property
    def folder(self) -> Path:
        """What launches keep for later ones lies here."""
        return self.workspace.folder

    def run(self, *, spec: LaunchSpec, environment: Mapping[str, str]) -> SideResult:
        """One launch. Raises SideError where the script does not train in it."""
        with self.prepared(spec, environment) as launch:
            launch.run()
            return _seen(launch)

    def run_whole(self, *, spec: LaunchSpec, environment: Mapping[str, str]) -> Output:
        """One whole run, and when it printed what. Raises SideError if it fails or does not train."""
        grown: list[tuple[float, int]] = []
        # The time of a line is known only if output is not buffered.
        with self.prepared(spec, {**environment, "PYTHONUNBUFFERED": "1"}) as launch:
            printed = launch.folder / OUTPUT
            began = time.perf_counter()
            with launch:
                while not launch.over():
                    size = printed.stat().st_size
                    if not grown or size != grown[-1][1]:
                        grown.append((time.perf_counter() - began, size))
                    time.sleep(0.02)
                took = time.perf_counter() - began
            text = _seen(launch).output
            return Output(text=text, grown=_in_characters(grown, printed.read_bytes()), seconds=took)

    @contextlib.contextmanager
    def prepared(self, spec: LaunchSpec, environment: Mapping[str, str], *, at_once: int = 1) -> Generator[Launch]:
        """A launch, one of so many, that is yet to be entered, in a folder that is gone afterwards. Raises SideError."""
        folder = self.workspace.new_folder()
        patience = at_once * self.patience + spec.start_seconds
        try:
            with (folder / OUTPUT).open("wb") as output:
                yield Launch(
                    command=self.command,
                    spec=spec,
                    folder=folder,
                    workspace=self.workspace,
                    environment=environment,
                    output=output.fileno(),
                    quiet=True,
                    patience=patience,
                    longest=patience + 4 * spec.seconds + spec.warm_seconds,
                    apart=at_once > 1,
                )
        except NoStepError as error:
            raise SideError(str(error)) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _in_characters(grown: Sequence[tuple[float, int]], said: bytes) -> list[tuple[float, int]]:
    """How many characters of the text were there by then; `grown` counts bytes."""
    decoder, number, start = codecs.getincrementaldecoder("utf-8")("replace"), 0, 0
    counted: list[tuple[float, int]] = []
    for at, end in grown:
        number += len(decoder.decode(said[start:end]))
        counted.append((at, number))
        start = end
    return counted


Side = tuple[Bench, LaunchSpec, Mapping[str, str]]  # with its spec and its environment


def run_in_turns(sides: Sequence[Side]) -> list[SideResult]:
    """Two sides at once, one working at a time. Raises SideError where one of them does not train."""
    with contextlib.ExitStack() as around:
        launches = [
            around.enter_context(bench.prepared(replace(spec, mode="in turns"), environment, at_once=len(sides)))
            for bench, spec, environment in sides
        ]
        try:
            take_turns(launches)
        except NoTurnsError as error:
            raise SideError(str(error)) from None
        return _at_equal_times([_seen(launch) for launch in launches])


def _at_equal_times(sides: Sequence[SideResult]) -> list[SideResult]:
    """The regular step of each as it was beside the first's: the median of the segments' ratios, two by two."""
    first = sides[0]
    results = [first]
    for other in sides[1:]:
        ratios = [math.log(b / a) for a, b in zip(first.segments, other.segments)]
        if ratios:
            regular = first.parts[REGULAR] * math.exp(statistics.median(ratios))
            other = replace(other, parts={**other.parts, REGULAR: regular})
        results.append(other)
    return results


def _seen(launch: Launch) -> SideResult:
    """The result of a launch that has ended. Raises SideError; NotAppliedError if a setting was not applied."""
    outcome = launch.outcome
    for path in files_of(FixesReport, launch.folder):
        for name, why in read(FixesReport, path).not_applied.items():
            raise NotAppliedError(f"{name} is not applied: {why}")
    if outcome.exit_code not in (0, None):
        raise SideError(f"the script failed (exit code {outcome.exit_code}): {outcome.last_line}")
    trained = [raw for raw in outcome.raws if raw.first_step_at is not None]
    if not trained:
        raise SideError("no optimizer step was seen")
    most = max(raw.num_steps for raw in trained)
    ranks = [Recorded(raw, [], exit_code=outcome.exit_code) for raw in trained if 2 * raw.num_steps >= most]
    if not any(one.measured for one in ranks):
        raise SideError("the script ended before its steps could be measured")
    recorded = max((one for one in ranks if one.measured), key=_regular)  # the slowest rank counts
    raw = recorded.raw
    if raw.trouble:
        raise SideError(f"it could not be measured: {raw.trouble}")
    began = raw.started_at if raw.started_at is not None else recorded.measured[0].start
    samples = [s.num_samples for s in recorded.measured if s.num_samples is not None]
    counted = [s for s in recorded.steps or recorded.measured if s.counted]
    return SideResult(
        parts=_parts(counted),
        segments=segment_means(counted, PLAIN),
        num_steps=len(recorded.measured),
        samples_per_step=statistics.fmean(samples) if samples else None,
        startup_seconds=began - outcome.started,
        peak_bytes=max((s.resident_bytes for s in outcome.samples), default=0.0),
        quality=_quality(trained),
        output=outcome.output,
    )


def _regular(recorded: Recorded) -> float:
    return _parts([s for s in recorded.steps if s.counted] or recorded.measured)[REGULAR]


def _quality(trained: Sequence[RawRun]) -> RawQuality:
    """What the first rank has seen, and whether all of them end with the same parameters."""
    quality = busiest(trained).quality or RawQuality()
    ends = {raw.quality.parameters for raw in trained if raw.quality is not None and raw.num_steps}
    known = len(trained) > 1 and None not in ends
    return replace(quality, ranks_agree=len(ends) == 1 if known else None)


def _parts(counted: Sequence[FoldedStep]) -> dict[str, float]:
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
