"""What of a budget is kept for all that comes after the trials.

In: the diagnosed script, and what its plan will be judged by. Out: seconds. Refuses to keep more than a part of what there
is: a search that tries nothing needs no proof.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.diagnosis.situation import Situation
from hasten.optimizations import schedules
from hasten.tuning.judge import Judge
from hasten.tuning.manner import manner_of
from hasten.tuning.metric import SEEDS, Metric

PAIRS = 4  # of launches that the proof's speed will take, as a rule
MOST, MOST_OF_WHOLE_RUNS = 1 / 2, 2 / 3  # of what is left of the budget once the script is diagnosed


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Seconds."""

    heats: float = 0.0  # of recipes, one whole run each
    proof: float = 0.0

    @property
    def all(self) -> float:
        """Of both."""
        return self.heats + self.proof


def reserve(
    first: Situation, judge: Judge, *, left: float, metric: Metric | None, num_steps: float | None, recipes: bool
) -> Reserve:
    """What heats and the proof will take at the script's own pace, for the plan's is not known yet."""
    start = first.case.run.first_step_seconds or 0.0
    proof = 2 * PAIRS * (start + manner_of(first, {}).seconds) + judge.seconds(start)
    if metric is None:
        return Reserve(proof=min(MOST * left, proof))
    whole = start + (num_steps or 0.0) * first.case.step
    if metric.target is None:
        few, many = (proof + 2 * number * whole for number in SEEDS)
        return Reserve(proof=max(min(MOST_OF_WHOLE_RUNS * left, few), min(MOST * left, many)))
    heats = (1 + len(schedules.combinations(num_steps))) * whole if recipes else 0.0
    proof += 2 * SEEDS[0] * whole  # by a target they tell, as a rule
    share = min(1.0, MOST_OF_WHOLE_RUNS * left / (heats + proof))
    return Reserve(heats=share * heats, proof=share * proof)
