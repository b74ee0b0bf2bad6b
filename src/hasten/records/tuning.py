"""What was tried, what was kept, and how that was proven."""

from __future__ import annotations

from typing import Literal

from hasten.protocol import Value
from hasten.records.codec import Name, Record
from hasten.records.diagnosis import CacheNeed
from hasten.records.machine import Machine
from hasten.records.run import Interval, Verdict

ProofVerdict = Literal["proven", "not proven", "broken"]
Guarantee = Literal["identical", "rounding", "precision", "recipe"]  # strongest first; see docs/tuning.md

Settings = dict[str, Value]


class Trial(Record, frozen=True):
    """One fix, or several at once, against the settings it was tried on, in fresh processes, in turn."""

    fix: str
    value: Value  # of the fix, in the candidate
    verdict: Verdict
    settings: Settings = {}  # of the baseline
    together: Settings = {}  # all that the candidate adds, where several fixes were tried at once
    speedup: Interval | None = None  # baseline / candidate step time
    baseline_seconds: tuple[float, ...] = ()  # a step; one value a launch, in the order of the launches
    candidate_seconds: tuple[float, ...] = ()
    predicted: float | None = None  # seconds a step that were promised
    startup_seconds: float | None = None  # how much later the candidate's steady steps begin
    memory_bytes: float | None = None  # how much more the candidate takes at its peak
    seconds: float = 0.0  # that the trial took
    note: str = ""

    @property
    def added(self) -> Settings:
        """What the candidate adds to the baseline."""
        return self.together or {self.fix: self.value}


class Check(Record, frozen=True):
    """One thing that the proof looked at."""

    what: str
    state: Literal["passed", "failed", "unknown"]
    text: str

    @property
    def is_optional(self) -> bool:
        """Whether it is asked only where it can be told."""
        return self.what in ("batches", "variety", "drawn anew")


class BothSides(Record, frozen=True):
    """One quantity on both sides, the first of one beside the first of the other.

    One value a launch, a seed or a run.
    """

    what: str  # "seconds a step" "loss" "metric" "seconds to target" "seconds to target, or to the end"
    baseline: tuple[float, ...]
    plan: tuple[float, ...]
    beside: Settings = {}  # that the baseline was seen under, for it draws the plan's random numbers there
    difference: Interval | None = None  # mean of plan - baseline, pair by pair


class Proof(Record, frozen=True):
    """Nothing against the whole plan: is it faster, and does it train as well?"""

    verdict: ProofVerdict
    guarantee: Guarantee  # of the weakest fix
    speedup: Interval | None = None  # baseline / plan step time
    baseline_rate: float | None = None  # samples a second
    plan_rate: float | None = None
    sooner: Interval | None = None  # baseline / plan seconds until the script's metric reached its target
    measured: tuple[BothSides, ...] = ()
    baseline_losses: tuple[float | None, ...] = ()  # of the first steps, from one seed; None: not finite
    plan_losses: tuple[float | None, ...] = ()
    plan_batches: tuple[float, ...] = ()  # mean of the first tensor of each batch, in the same launch
    beside: Settings = {}  # that the baseline's losses were seen under, for it draws the plan's random numbers there
    checks: tuple[Check, ...] = ()
    broken_by: tuple[str, ...] = ()  # fixes that were taken out because of it
    broken_because: tuple[str, ...] = ()  # what was seen of each of them


class Suggestion(Record, frozen=True):
    """A change that only the user's source can have."""

    kind: str  # of the finding
    file: str
    line: int
    source: str  # the line itself, stripped
    title: str
    example: str  # two lines of what to write instead
    recoverable: float  # seconds a step


SkippedState = Literal["does not apply", "does not help", "not tried", "no time"]


class Skipped(Record, frozen=True):
    """A fix without a trial, and why."""

    fix: str
    reason: str
    state: SkippedState = "not tried"  # "does not help": by the diagnosis; "no time": worth a trial that was not made


class Heat(Record, frozen=True):
    """One whole run under a recipe, beside the plan's other fixes: a first look at which to prove."""

    settings: Settings  # the recipe; none: as the script trains
    metric: float | None = None  # at its end
    reached: float | None = None  # seconds from the command's start until the target was reached; None: never
    note: str = ""  # why it came to nothing


class Followed(Record, frozen=True):
    """A run under a plan that nobody measured closely: its own count, told at its end."""

    script: str  # or the module's name
    ended: float  # seconds since 1970
    settings: Settings
    num_steps: int
    samples_per_second: float  # in regular steps
    baseline_rate: float | None = None  # the script's without the plan, when that was made


class Tuning(Record, frozen=True):
    """One search for a plan: what it began with, what it tried, what it kept."""

    version: int  # RECORD_VERSION when it was written
    hasten: str
    id: Name
    command: tuple[str, ...]
    directory: str
    started: float  # seconds since 1970
    machine: Machine
    state: Literal["running", "interrupted", "done"]
    settings: Settings = {}  # kept
    trials: tuple[Trial, ...] = ()
    heats: tuple[Heat, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    proof: Proof | None = None
    seconds: float = 0.0  # spent so far
    step_seconds: float | None = None  # of the baseline, when it was diagnosed
    samples_per_step: float | None = None
    cache: CacheNeed | None = None  # of the baseline: what a full cache would take, and what of it memory holds
    runs: tuple[Name, ...] = ()  # ids of the diagnosed runs, the baseline's first
    run_settings: tuple[Settings, ...] = ()  # under which each was made
    notes: tuple[str, ...] = ()
