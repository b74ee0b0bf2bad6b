"""What is known when optimizations are proposed: one diagnosed run, and what is enabled already."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.diagnosis.case import Case
from hasten.records import Diagnosis, Finding, Intervention, Settings

WORTH = 0.02  # share of the step that an optimization must promise to be tried
SUSPICIOUS = 0.04  # the same, where it was only suspected and nothing is enabled yet


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What is known when optimizations are proposed."""

    case: Case
    diagnosis: Diagnosis
    settings: Settings  # what is enabled already

    def finding(self, *kinds: str) -> Finding | None:
        """The costliest finding of these kinds."""
        found = [f for f in self.diagnosis.findings if f.kind in kinds]
        return max(found, key=lambda f: f.recoverable, default=None)

    def intervention(self, name: str) -> Intervention | None:
        """A further run of this name that gave a ratio."""
        return next((i for i in self.case.run.interventions if i.name == name and i.ratio is not None), None)

    def expected(self, name: str, prior: float = 0.0) -> float:
        """Seconds per step that an optimization may save of which the diagnosis is not sure.

        Args:
            name: the intervention that would confirm it.
            prior: what it saves on scripts like this, in seconds per step. It counts if the experiment was due and not made,
                or was too noisy to exclude it.
        """
        tried = self.intervention(name)
        if tried is None:
            return prior if name in self.case.run.untried else 0.0
        assert tried.ratio is not None
        seen, most = ((1 - ratio) * self.case.regular for ratio in (tried.ratio.value, tried.ratio.low))
        if prior and tried.ratio.high >= 1.0 and most >= SUSPICIOUS * self.case.step:
            # Inconclusive: the estimate and the usual gain count equally, within the interval.
            return max(0.0, min(most, (prior + seen) / 2))
        return self.suspected(name)

    def suspected(self, name: str) -> float:
        """Seconds per step that an experiment may have saved, though it was not sure of it.

        A finding needs certainty; a trial does not, because it is what provides it. As long as nothing was kept it is half of
        the estimate, which owes something to luck. Once a setting was kept the script is worth a longer search: then a sure
        gain counts even if it is too small for a finding, and an unsure one counts as the mean of the estimate and the better
        end of its interval. A few noisy steps that showed nothing do not prove that there is nothing, nor that there is
        much: what they leave open promises no more than is just worth a trial, and so is tried last.
        """
        tried = self.intervention(name)
        if tried is None or tried.ratio is None or tried.ratio.value > 1.0:
            return 0.0
        sure = tried.ratio.high < 1.0
        seen = (1 - tried.ratio.value) * self.case.regular
        if not self.settings:
            saved = 0.0 if sure else seen / 2
            return saved if saved >= SUSPICIOUS * self.case.step else 0.0
        if sure:
            return seen if seen >= WORTH * self.case.step else 0.0
        hoped = (seen + (1 - tried.ratio.low) * self.case.regular) / 2
        return max(seen / 2, WORTH * self.case.step) if hoped >= WORTH * self.case.step else 0.0

    @property
    def headroom(self) -> float:
        """Seconds a step that input fixes can save at most, epoch starts included."""
        return max(self.case.headroom or 0.0, self.suspected("replay")) + self.case.phase("epoch_start")

    @property
    def least(self) -> float:
        """Seconds a step that make a fix worth its trial."""
        return WORTH * self.case.step
