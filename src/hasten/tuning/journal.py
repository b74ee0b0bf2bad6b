"""What a search has found so far, saved after every change, and how long it may still take.

In: changes. Out: a Tuning in `.hasten/tunings/<id>/tuning.json`, whole at any moment. Refuses to decide.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hasten.records import Settings, Trial, Tuning, to_json
from hasten.reports.tuning import trial_line
from hasten.tuning.reserve import Reserve

Progress = Callable[[str, float, float], object]  # what is done, seconds spent, of how many


@dataclass
class Journal:
    """One search's record and its clock."""

    folder: Path
    seconds: float  # that the search may take
    on_progress: Progress
    on_result: Callable[[str], object]
    spent_before: float = 0.0  # by the search that this one goes on with
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
        """A trial has ended, and these settings are left; one that was continued takes the place of what it was."""
        trials = list(self.tuning.trials)
        number = next((n for n, earlier in enumerate(trials) if _is_continued(earlier, trial)), len(trials))
        trials[number : number + 1] = [trial]
        self.keep(settings=settings, trials=tuple(trials))
        self.on_result(f"trial {number + 1}: {trial_line(trial, self.tuning)}")

    def note(self, note: str) -> None:
        """Something that a reader of the result should know."""
        self.keep(notes=(*self.tuning.notes, note))

    def tell(self, what: str) -> None:
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

    def left_for_heats(self) -> float:
        """Seconds of the budget, without those that the proof will take."""
        return self.left() - self.reserve.proof

    def clear(self) -> None:
        """Leave no folder where there is no record."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # refused where it is not empty


def _is_continued(earlier: Trial, trial: Trial) -> bool:
    same = earlier.settings == trial.settings and earlier.added == trial.added
    return same and earlier.verdict == "inconclusive"
