"""The evidence that rules share: a run, its breakdown and ceiling, and values derived from them."""

from __future__ import annotations

import re
import statistics
from functools import cached_property

import msgspec

from hasten.diagnosis.breakdown import intervention, train_loader
from hasten.protocol import GRADIENT_PHASES
from hasten.records import (
    COMPUTING,
    RARE,
    Breakdown,
    Ceiling,
    Finding,
    HotLine,
    Interval,
    LoaderFacts,
    Phase,
    Run,
    Where,
)
from hasten.stats import scaled

# The smallest share of the step that a finding must save: less is lost in the noise of shared machines.
WORTH = 0.05
# The same for findings that were inferred and not confirmed.
WORTH_INFERRED = 0.08
# Share of the batches that were requested when none was ready.
STARVED = 0.2
PROFILING = re.compile(r"profil|emit_nvtx|record_function|key_averages", re.IGNORECASE)


class Case:
    """One run, as the rules see it. Values that the run does not contain are None."""

    def __init__(self, run: Run, breakdown: Breakdown, ceiling: Ceiling) -> None:
        self.run = run
        self.facts = run.facts
        self.breakdown = breakdown
        self.ceiling = ceiling
        self.step = breakdown.step_seconds

    def phase(self, *names: Phase) -> float:
        """Seconds per step of these phases; a phase that was not seen counts as zero.

        For compute phases it is the device time, if the host only queues the work.
        """
        known = self.breakdown
        device = {name: known.device_phases.get(name, 0.0) for name in COMPUTING}
        return sum(max(known.phases.get(name) or 0.0, device.get(name, 0.0)) for name in names)

    def share(self, *names: Phase) -> float:
        """The share of the step that these phases take."""
        return self.phase(*names) / self.step if self.step else 0.0

    @cached_property
    def idle(self) -> float | None:
        """Seconds per step in which the device is idle, at most; None on a CPU, or if unknown.

        The device's work in validation and for checkpoints is not timed: it is taken to be busy during all of them.
        """
        busy = self.breakdown.device_seconds
        return None if busy is None else max(0.0, self.step - self.phase("validation", "checkpoint") - busy)

    @cached_property
    def waiting(self) -> float | None:
        """Idle time plus the phases in which the device waited for the host: the most that a faster host can save."""
        return None if self.idle is None else min(self.step, self.idle + self.breakdown.device_waited)

    @cached_property
    def arithmetic(self) -> float:
        """Seconds per step of forward, loss and backward, without those in which the device waited for the host."""
        return max(0.0, self.phase(*GRADIENT_PHASES) - self.breakdown.device_waited)

    @cached_property
    def regular(self) -> float:
        """The step without epoch starts, validations and checkpoints."""
        return self.step - self.phase(*RARE)

    @cached_property
    def train(self) -> LoaderFacts | None:
        """The training loader; None without one."""
        return train_loader(self.run)

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the model is trained on the CPU."""
        return self.facts.device == "cpu"

    @cached_property
    def cores(self) -> float:
        """Cores that this process has: several ranks share those of the host."""
        return self.run.machine.num_cores / self.facts.ranks_per_host

    @cached_property
    def batches(self) -> float:
        """Training batches per step."""
        return statistics.fmean([s.num_batches for s in self.run.steps] or [1.0]) or 1.0

    @cached_property
    def starved(self) -> float | None:
        """Share of the batches that were requested when none was ready; None without workers."""
        ready = self.train.queue_ready if self.train is not None and self.train.num_workers else ()
        return sum(r == 0 for r in ready) / len(ready) if ready else None

    @cached_property
    def waits(self) -> bool:
        """Whether training waits for batches. It does not if the workers nearly always have one ready."""
        return self.starved is None or self.starved >= STARVED or self.share("data_wait") >= WORTH_INFERRED

    @cached_property
    def crowding(self) -> float:
        """Seconds per step that loader workers cost by using cores of CPU training, while no step waits for them."""
        headroom = self.headroom
        if self.waits or not self.on_cpu or headroom is None or self.measured("replay") is None:
            return 0.0
        return headroom if headroom >= WORTH_INFERRED * self.step else 0.0

    @cached_property
    def headroom(self) -> float | None:
        """The most that input fixes can save within an epoch, in seconds per step: from replay, else the data wait."""
        if self.train is None:
            return None
        if self.ceiling.headroom is not None and (self.measured("replay") or not self.phase("data_wait")):
            return max(0.0, self.ceiling.headroom - self.phase("epoch_start"))
        return self.phase("data_wait")

    def measured(self, name: str, *, of: float | None = None) -> tuple[float, Interval] | None:
        """Seconds per step that an intervention saved, with the interval; None if not tried or not significant.

        `of` is the time that the ratio applies to: by default the regular step.
        """
        tried = intervention(self.run, name)
        if tried is None or tried.ratio is None or tried.ratio.high >= 1.0:
            return None
        base = self.regular if of is None else of
        ratio = tried.ratio
        saved = Interval(*scaled((ratio.value, ratio.low, ratio.high), lambda r: base * (1 - r)))
        return saved.value, saved

    def tried(self, name: str) -> bool:
        """Whether an intervention was tried and gave a ratio."""
        return intervention(self.run, name) is not None

    def where(self, phase: Phase) -> Where | None:
        """The first place in the source that entered a phase."""
        return self.facts.where.get(phase)

    def lines(self, *phases: Phase) -> list[HotLine]:
        """Hot lines of the training process in these phases, costliest first; their seconds sum to those of the phases."""
        return [h for phase in phases for h in self._lines_of(phase)]

    def _lines_of(self, phase: Phase) -> list[HotLine]:
        lines = [h for h in self.run.hot_lines if h.phase == phase and not h.in_worker]
        total = sum(h.seconds for h in lines)
        # Sampling gives the lines' shares, marks the phase's duration: short Python code is sampled too rarely, because the
        # sampler gets the GIL sooner when an operator has released it.
        scale = self.phase(phase) / total if total else 1.0
        return [msgspec.structs.replace(h, seconds=scale * h.seconds) for h in lines]

    def profiling(self) -> list[HotLine]:
        """The script's lines that start, stop and read a profiler."""
        return [h for h in self.lines("script") if self.facts.profiler and PROFILING.search(h.where.source)]

    def cores_busy(self) -> tuple[float, float, float] | None:
        """Mean cores in use during the measured steps: by the script, the whole machine, and other processes."""
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
        """Minor page faults per step of the script's processes; None if they were not counted."""
        start, end = self.run.steps[0].start, self.run.steps[-1].start + self.run.steps[-1].seconds
        counted = [s for s in self.run.resources if start <= s.at <= end and s.minor_faults is not None]
        if len(counted) < 2:
            return None
        faults = (counted[-1].minor_faults or 0) - (counted[0].minor_faults or 0)
        return faults / (counted[-1].at - counted[0].at) * self.step

    def worth(self, finding: Finding) -> bool:
        """Whether a finding saves enough to be reported."""
        least = WORTH if finding.confirmed_by is not None else WORTH_INFERRED
        return finding.recoverable >= least * self.step
