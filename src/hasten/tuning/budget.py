"""The time of a search: its record as it goes, what is kept for what comes after, and what start-up costs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hasten import format
from hasten.diagnosis.situation import Situation
from hasten.errors import RecordError, ResumeError
from hasten.optimizations import schedules
from hasten.records import Run, Settings, Trial, Tuning, from_json, to_json
from hasten.reports.tuning import trial_line
from hasten.tuning.evaluator import Evaluator
from hasten.tuning.metric import SEEDS, Metric
from hasten.tuning.trial_config import pair_seconds

Progress = Callable[[str, float, float], object]  # what is done, seconds spent, of how many
PAIRS = 4  # of launches that the proof's speed will take, as a rule
MOST, MOST_OF_WHOLE_RUNS = 1 / 2, 2 / 3  # of what is left of the budget once the script is diagnosed


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a search may take, and what it may change."""

    seconds: float = 600.0
    patience: float = 60.0  # for a script's first step
    recipes: bool = False
    metric: Metric | None = None
    num_epochs: float | None = None  # that training will take; start-up costs are charged against them
    longest_diagnosis: float = 15.0
    checks_quality: bool = True  # False: a demonstration, whose plan is never "proven"

    @property
    def diagnose_seconds(self) -> float:
        """How long the script is measured: a short budget gives no more than a twelfth to it."""
        return min(self.longest_diagnosis, self.seconds / 12)


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Seconds."""

    screening_runs: float = 0.0  # of recipes, one whole run each
    proof: float = 0.0

    @property
    def all(self) -> float:
        """Of both."""
        return self.screening_runs + self.proof

    def after(self, early_proof: float) -> Reserve:
        """What is still to come after a first plan's proof took so long: half of its launches serve every proof.

        They are those of the baseline.
        """
        return replace(self, proof=max(0.0, self.proof - early_proof / 2))


def reserve(
    first: Situation,
    evaluator: Evaluator,
    *,
    left: float,
    metric: Metric | None,
    num_steps: float | None,
    recipes: bool,
    checks_quality: bool = True,
) -> Reserve:
    """What screening_runs and the proof will take at the script's own pace, for the plan's is not known yet."""
    start = first.case.run.first_step_seconds or 0.0
    if not checks_quality:
        return Reserve()
    proof = PAIRS * pair_seconds(first) + evaluator.seconds(start)
    if metric is None:
        return Reserve(proof=min(MOST * left, proof))
    whole = start + (num_steps or 0.0) * first.case.step
    if metric.target is None:
        few, many = (proof + 2 * number * whole for number in SEEDS)
        return Reserve(proof=max(min(MOST_OF_WHOLE_RUNS * left, few), min(MOST * left, many)))
    screening_runs = (1 + len(schedules.combinations(num_steps))) * whole if recipes else 0.0
    proof += 2 * SEEDS[0] * whole  # usually enough with a target
    share = min(1.0, MOST_OF_WHOLE_RUNS * left / (screening_runs + proof))
    return Reserve(screening_runs=share * screening_runs, proof=share * proof)


NOTABLE = 1.0  # seconds by which a start must be later to be charged at all


def num_steps_of(run: Run, num_epochs: float | None) -> float | None:
    """The steps of a whole training: of so many epochs, or of a script that finished while it was measured."""
    if num_epochs is not None:
        per_epoch = run.facts.steps_per_epoch
        return None if per_epoch is None else num_epochs * per_epoch
    if run.ended_by != "script" or not run.steps or run.first_step_seconds is None:
        return None
    first, last = run.steps[0], run.steps[-1]
    end = last.start + last.seconds
    pace = (end - first.start) / len(run.steps)
    return 1 + (end - run.first_step_seconds) / pace


def charged(trial: Trial, *, num_steps: float | None) -> Trial:
    """The trial with its break-even step, and its verdict where training ends before that."""
    late = trial.startup_seconds or 0.0
    if trial.verdict != "faster" or late <= NOTABLE:
        return trial
    gain = statistics.fmean(trial.baseline_seconds) - statistics.fmean(trial.candidate_seconds)
    even = late / gain if gain > 0 else float("inf")
    note = f"its start takes {format.seconds(late, rough=True)} more, earned back after {even:,.0f} steps"
    if num_steps is None or even <= num_steps:
        return msgspec.structs.replace(trial, note=note)
    return msgspec.structs.replace(
        trial, verdict="no difference", note=f"{note}, and training takes {num_steps:,.0f}"
    )


@dataclass
class Journal:
    """One search's record and its clock."""

    folder: Path
    seconds: float  # that the search may take
    on_progress: Progress
    on_result: Callable[[str], object]
    spent_before: float = 0.0  # by the search that this one resumes
    reserve: Reserve = field(default_factory=Reserve)
    _began: float = field(default_factory=time.monotonic)
    _tuning: Tuning | None = None

    @property
    def tuning(self) -> Tuning:
        """The record as it stands; there is one as soon as the baseline is diagnosed."""
        assert self._tuning is not None
        return self._tuning

    def begin(self, tuning: Tuning) -> None:
        """Start with this record."""
        self._tuning = tuning

    def keep(self, **changes: object) -> None:
        """Change the record, and save it whole."""
        self._tuning = msgspec.structs.replace(self.tuning, **changes, seconds=self.spent())
        part = self.folder / "tuning.part"
        part.write_bytes(to_json(self._tuning))
        part.replace(self.folder / "tuning.json")

    def add(self, settings: Settings, trial: Trial) -> None:
        """A trial has ended, and these settings are left; one that was continued takes the place of what it was.

        A proof of other settings is one no more.
        """
        trial = msgspec.structs.replace(trial, at=self.spent())
        trials = list(self.tuning.trials)
        number = next((n for n, earlier in enumerate(trials) if is_same(earlier, trial)), len(trials))
        trials[number : number + 1] = [trial]
        proof = self.tuning.proof if settings == self.tuning.settings else None
        self.keep(settings=settings, trials=tuple(trials), proof=proof)
        self.on_result(f"trial {number + 1}: {trial_line(trial, self.tuning)}")

    def note(self, note: str) -> None:
        """Something that a reader of the result should know."""
        self.keep(notes=(*self.tuning.notes, note))

    def report(self, what: str) -> None:
        """Say what is being done."""
        self.on_progress(what, self.spent(), self.seconds)

    def spent(self) -> float:
        """Seconds, those of an interrupted search among them."""
        return self.spent_before + time.monotonic() - self._began

    def left(self) -> float:
        """Seconds of the budget."""
        return self.seconds - self.spent()

    def left_for_search(self) -> float:
        """Seconds of the budget, without those that are kept for what comes after.

        As long as there is no plan, finding one comes first: half of them may go into trials.
        """
        return self.left() - self.reserve.all * (1.0 if self.tuning.settings else 0.5)

    def left_for_screening(self) -> float:
        """Seconds of the budget, without those that the proof will take."""
        return self.left() - self.reserve.proof

    def clear(self) -> None:
        """Leave no folder where there is no record."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # refused where it is not empty


def last_tuning(root: Path, command: Sequence[str]) -> Tuning:
    """The last search of this command that did not finish. Raises ResumeError."""
    saved = sorted((root / "tunings").glob("*/tuning.json"))
    for path in reversed(saved):
        try:
            tuning = from_json(Tuning, path.read_bytes(), source=str(path))
        except RecordError as error:  # it may be the one that was meant
            raise ResumeError(f"{error}; or leave --resume out to start another search") from None
        if tuning.command == tuple(command) and tuning.id == path.parent.name:
            if tuning.state == "done":
                raise ResumeError(
                    "no search of this command was interrupted after its first trial; leave --resume out"
                )
            return tuning
    raise ResumeError("there is no search of this command to resume; leave --resume out")


def is_same(one: Trial, other: Trial) -> bool:
    """Whether two trials ask the same: of one that is continued, or made again, the later result counts."""
    return one.settings == other.settings and one.added == other.added
