"""What every rule reads: the run, its breakdown and ceiling, and the few sums that rules share.

In: a Run. Out: answers, None where the run does not hold them. Refuses to decide anything.
"""

from __future__ import annotations

import re
import statistics
from functools import cached_property

import msgspec

from hasten.diagnosis.ceiling import intervention, train_loader
from hasten.records import RARE, Breakdown, Ceiling, Finding, HotLine, Interval, LoaderFacts, Phase, Run, Where
from hasten.stats import scaled

# A finding must promise at least this share of the step: below it lies the noise of shared machines.
WORTH = 0.05
# What was only inferred must promise more than what was tried.
WORTH_INFERRED = 0.08
# Share of the batches for which none lay ready.
STARVED = 0.2
PROFILING = re.compile(r"profil|emit_nvtx|record_function|key_averages", re.IGNORECASE)


COMPUTING = ("forward", "loss", "backward", "optimizer", "zero_grad")


class Case:
    """One run, as the rules see it."""

    def __init__(self, run: Run, breakdown: Breakdown, ceiling: Ceiling) -> None:
        self.run = run
        self.facts = run.facts
        self.breakdown = breakdown
        self.ceiling = ceiling
        self.step = breakdown.step_seconds

    def phase(self, *names: Phase) -> float:
        """Seconds a step of these phases; what was not seen counts nothing.

        What computes takes as long as the device takes for it, where the host only asks for it.
        """
        known = self.breakdown
        device = {name: known.device_phases.get(name, 0.0) for name in COMPUTING}
        return sum(max(known.phases.get(name) or 0.0, device.get(name, 0.0)) for name in names)

    def share(self, *names: Phase) -> float:
        """The same as a share of the step."""
        return self.phase(*names) / self.step if self.step else 0.0

    @cached_property
    def idle(self) -> float | None:
        """Seconds a step that the device has nothing to do, at most; None on a CPU, or where that is not known."""
        busy = self.breakdown.device_seconds
        return None if busy is None else max(0.0, self.step - busy)

    @cached_property
    def waiting(self) -> float | None:
        """The same, with the phases in which the device waited for the host to ask: what a faster host can gain."""
        return None if self.idle is None else min(self.step, self.idle + self.breakdown.device_waited)

    @cached_property
    def regular(self) -> float:
        """The step without epoch starts, validations and checkpoints."""
        return self.step - self.phase(*RARE)

    @cached_property
    def train(self) -> LoaderFacts | None:
        """The loader that feeds training."""
        return train_loader(self.run)

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the model is trained on the CPU."""
        return self.facts.device == "cpu"

    @cached_property
    def batches(self) -> float:
        """Training batches a step."""
        return statistics.fmean([s.num_batches for s in self.run.steps] or [1.0]) or 1.0

    @cached_property
    def starved(self) -> float | None:
        """Share of the batches that were asked for when none lay ready; None without workers."""
        ready = self.train.queue_ready if self.train is not None and self.train.num_workers else ()
        return sum(r == 0 for r in ready) / len(ready) if ready else None

    @cached_property
    def waits(self) -> bool:
        """Whether batches are late: workers that have one ready nearly always are not what a step waits for."""
        return self.starved is None or self.starved >= STARVED or self.share("data_wait") >= WORTH_INFERRED

    @cached_property
    def crowding(self) -> float:
        """Seconds a step that workers cost whom nobody waits for: they take cores that training on a CPU would use."""
        headroom = self.headroom
        if self.waits or not self.on_cpu or headroom is None or self.measured("replay") is None:
            return 0.0
        return headroom if headroom >= WORTH_INFERRED * self.step else 0.0

    @cached_property
    def headroom(self) -> float | None:
        """The most that input fixes can give within an epoch: by replay, else the data wait itself."""
        if self.train is None:
            return None
        if self.ceiling.headroom is not None and (self.measured("replay") or not self.phase("data_wait")):
            return max(0.0, self.ceiling.headroom - self.phase("epoch_start"))
        return self.phase("data_wait")

    def measured(self, name: str, *, of: float | None = None) -> tuple[float, Interval] | None:
        """Seconds a step that an intervention saved, with the interval; None if not tried or not sure.

        `of` is the time that the ratio applies to, the regular step by default.
        """
        tried = intervention(self.run, name)
        if tried is None or tried.ratio is None or tried.ratio.high >= 1.0:
            return None
        base = self.regular if of is None else of
        ratio = tried.ratio
        saved = Interval(*scaled((ratio.value, ratio.low, ratio.high), lambda r: base * (1 - r)))
        return saved.value, saved

    def tried(self, name: str) -> bool:
        """Whether an intervention was made and gave a ratio."""
        return intervention(self.run, name) is not None

    def where(self, phase: Phase) -> Where | None:
        """The first place that a phase was entered from."""
        return self.facts.where.get(phase)

    def lines(self, *phases: Phase) -> list[HotLine]:
        """Hot lines of the training process in these phases, costliest first; together what the phases took."""
        return [h for phase in phases for h in self._lines_of(phase)]

    def _lines_of(self, phase: Phase) -> list[HotLine]:
        lines = [h for h in self.run.hot_lines if h.phase == phase and not h.in_worker]
        total = sum(h.seconds for h in lines)
        # Sampling tells the lines' shares; how long the phase is, marks know better: short code in Python is met too
        # seldom, for the sampler gets the interpreter sooner where an operator has given it up.
        scale = self.phase(phase) / total if total else 1.0
        return [msgspec.structs.replace(h, seconds=scale * h.seconds) for h in lines]

    def profiling(self) -> list[HotLine]:
        """The script's lines that start, end and read a profiler."""
        return [h for h in self.lines("script") if self.facts.profiler and PROFILING.search(h.where.source)]

    def cores_busy(self) -> tuple[float, float, float] | None:
        """Mean cores in use over the measured steps: the tree's, the machine's, and others'."""
        start = self.run.steps[0].start
        end = self.run.steps[-1].start + self.run.steps[-1].seconds
        samples = [s for s in self.run.resources if start <= s.at <= end]
        if not samples:
            return None
        return (
            statistics.fmean(s.tree_cpu for s in samples),
            statistics.fmean(s.machine_cpu for s in samples),
            statistics.fmean(s.others_cpu for s in samples),
        )

    @cached_property
    def faults_per_step(self) -> float | None:
        """Minor page faults a step, of the script's processes; None where they were not counted."""
        start, end = self.run.steps[0].start, self.run.steps[-1].start + self.run.steps[-1].seconds
        counted = [s for s in self.run.resources if start <= s.at <= end and s.minor_faults is not None]
        if len(counted) < 2:
            return None
        faults = (counted[-1].minor_faults or 0) - (counted[0].minor_faults or 0)
        return faults / (counted[-1].at - counted[0].at) * self.step

    def worth(self, finding: Finding) -> bool:
        """Whether a finding promises enough to be told."""
        least = WORTH if finding.confirmed_by is not None else WORTH_INFERRED
        return finding.recoverable >= least * self.step
