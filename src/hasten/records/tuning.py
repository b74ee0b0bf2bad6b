"""The results of a tuning run: what was tried, what was kept, and the quality check."""

from __future__ import annotations

from typing import Literal

from hasten.protocol import Value
from hasten.records.codec import Name, Record
from hasten.records.diagnosis import CacheNeed, FindingKind
from hasten.records.machine import Machine
from hasten.records.run import Interval, Verdict

ProofVerdict = Literal["proven", "not proven", "broken"]
Guarantee = Literal["identical", "rounding", "precision", "recipe"]  # strongest first; see docs/tuning.md

Settings = dict[str, Value]


class Trial(Record, frozen=True):
    """One fix, or several together, compared with the settings it was added to, in fresh processes that alternate."""

    fix: str
    value: Value  # value of the fix in the candidate
    verdict: Verdict
    settings: Settings = {}  # settings of the baseline
    together: Settings = {}  # everything that the candidate adds, if several fixes were tried together
    speedup: Interval | None = None  # baseline / candidate step time
    baseline_seconds: tuple[float, ...] = ()  # per step; one value per launch, in the order of the launches
    candidate_seconds: tuple[float, ...] = ()
    predicted: float | None = None  # expected saving, in seconds per step
    startup_seconds: float | None = None  # how much later the candidate reaches steady steps
    memory_bytes: float | None = None  # how much more memory the candidate needs at its peak
    seconds: float = 0.0  # duration of the trial
    at: float = 0.0  # when it ended, in seconds since the search began
    note: str = ""

    @property
    def added(self) -> Settings:
        """The settings that the candidate adds to the baseline."""
        return self.together or {self.fix: self.value}


class Check(Record, frozen=True):
    """One check of the quality check."""

    what: str
    state: Literal["passed", "failed", "unknown"]
    text: str

    @property
    def is_optional(self) -> bool:
        """Whether a plan can be proven without it."""
        return self.what in ("batches", "variety", "random draws")


class BothSides(Record, frozen=True):
    """One quantity measured on both sides, as pairs: one value per launch, seed or run."""

    what: str  # "seconds a step" "loss" "metric" "seconds to target" "seconds to target, or to the end"
    baseline: tuple[float, ...]
    plan: tuple[float, ...]
    reference_settings: Settings = {}  # settings of the baseline, with which it draws the same random numbers as the plan
    difference: Interval | None = None  # mean of plan - baseline over pairs


class Proof(Record, frozen=True):
    """The whole plan compared with the baseline: is it faster, and is the model as good?"""

    verdict: ProofVerdict
    guarantee: Guarantee  # the weakest guarantee of its fixes
    speedup: Interval | None = None  # baseline / plan step time
    baseline_rate: float | None = None  # samples per second
    plan_rate: float | None = None
    target_speedup: Interval | None = None  # baseline / plan time until the script's metric reached its target
    measured: tuple[BothSides, ...] = ()
    baseline_losses: tuple[float | None, ...] = ()  # losses of the first steps, for one seed; None: not finite
    plan_losses: tuple[float | None, ...] = ()
    plan_batches: tuple[float, ...] = ()  # mean of the first tensor of each batch, in the same launch
    reference_settings: Settings = {}  # settings of the baseline's losses, with which it draws the same random numbers as the plan
    checks: tuple[Check, ...] = ()
    broken_by: tuple[str, ...] = ()  # fixes that were dropped by the quality check
    broken_because: tuple[str, ...] = ()  # the reason for each of them


class VersionProof(Record, frozen=True):
    """A version of a script compared with another: is it faster, and does it train as well?"""

    version: int  # RECORD_VERSION at the time of writing
    hasten: str
    old: tuple[str, ...]  # the commands
    new: tuple[str, ...]
    machine: Machine
    verdict: Verdict  # of the speed: "slower": the new version is
    quality: ProofVerdict
    speedup: Interval | None = None  # old / new step time, for the same number of samples
    old_seconds: tuple[float, ...] = ()  # per step; one value per launch
    new_seconds: tuple[float, ...] = ()
    guarantee: Guarantee | None = None  # how closely the new version was seen to compute the same; None: not at all
    checks: tuple[Check, ...] = ()
    old_losses: tuple[float | None, ...] = ()  # of the first steps, at one seed; None: not finite
    new_losses: tuple[float | None, ...] = ()
    differences: tuple[str, ...] = ()  # what the two do differently
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # that it took


class Suggestion(Record, frozen=True):
    """A change that needs an edit in the user's source."""

    kind: FindingKind
    file: str
    line: int
    source: str  # the line itself, stripped
    title: str
    example: str  # replacement code, about two lines
    recoverable: float  # seconds per step that it would save


SkippedState = Literal["does not apply", "does not help", "not tried", "no time"]


class Skipped(Record, frozen=True):
    """A fix that was not tried, and why."""

    fix: str
    reason: str
    state: SkippedState = (
        "not tried"  # "does not help": according to the diagnosis; "no time": worth a trial that was not made
    )


class ScreeningRun(Record, frozen=True):
    """One full run with a training recipe and the plan's other fixes, used to choose the recipe to prove."""

    settings: Settings  # the recipe; empty: the script's own
    metric: float | None = None  # final value
    reached: float | None = (
        None  # seconds from the start of the command until the target was reached; None: not reached
    )
    note: str = ""  # why it failed


class PlannedRunRecord(Record, frozen=True):
    """A run of `hasten run`: its own counts, written at its end."""

    script: str  # or the name of the module
    ended: float  # seconds since 1970
    settings: Settings
    num_steps: int
    samples_per_second: float  # in regular steps


class Tuning(Record, frozen=True):
    """One tuning run: its baseline, its trials, and the settings that were kept."""

    version: int  # RECORD_VERSION at the time of writing
    hasten: str
    id: Name
    command: tuple[str, ...]
    directory: str
    started: float  # seconds since 1970
    machine: Machine
    state: Literal["running", "interrupted", "done"]
    settings: Settings = {}  # of the plan
    trials: tuple[Trial, ...] = ()
    screening_runs: tuple[ScreeningRun, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    proof: Proof | None = None
    seconds: float = 0.0  # spent so far
    step_seconds: float | None = None  # mean step time of the baseline, from its diagnosis
    samples_per_step: float | None = None
    cache: CacheNeed | None = None  # of the baseline: what a full cache would need, and how much of it fits in memory
    runs: tuple[Name, ...] = ()  # ids of the diagnosed runs, the baseline's first
    run_settings: tuple[Settings, ...] = ()  # settings of each run
    notes: tuple[str, ...] = ()
