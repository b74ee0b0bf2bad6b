"""What a fix costs before its first steady step, against what it gains in each.

In: a trial, and how long training is. Out: the trial, no longer faster where its start is never earned back. Refuses to
guess a length: where it is not known, the step that earns the start back is told and no more.
"""

from __future__ import annotations

import statistics

import msgspec

from hasten import format
from hasten.records import Run, Trial

NOTABLE = 1.0  # seconds by which a start must be later to be charged at all


def num_steps_of(run: Run, num_epochs: float | None) -> float | None:
    """The steps of a whole training: as many epochs as are said, or those of a script that was seen to its end."""
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
