"""Spans become steps: whose each instant of the training thread was.

In: the spans and step boundaries of one process's raw record. Out: exclusive seconds by phase for each step.
Refuses to know files, clocks and processes: it is tested on hand-written spans.

A span counts for what its inner spans leave of it. Two phases have no call to hook and are made here: `loss`, from
the end of a training forward to the backward after it, and `validation`, from the first to the last event of a
stretch in which batches are looked at but not learned from (`roles.py` tells).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hasten.measurement.inside.marks import GRAD, TRAINING, UNKNOWN_LENGTH
from hasten.measurement.roles import Span, loader_roles, validations
from hasten.records import PHASES, RARE, Phase, Role
from hasten.stats import mean_at_size, typical_size

EPSILON = 1e-6  # seconds: less is nothing
KEPT_WHOLE = ("validation", "checkpoint")  # what happens inside these counts for them


@dataclass(kw_only=True)
class FoldedStep:
    """One step with its exclusive seconds."""

    start: float
    end: float
    label: str
    counted: bool
    segment: int = 0  # how many segments came before its own
    phases: dict[Phase, float] = field(default_factory=dict)
    device: dict[Phase, float] = field(default_factory=dict)  # of the phases that have events
    device_waited: float = 0.0  # of these, in phases at whose end the device waited for the host
    num_batches: int = 0
    num_samples: int | None = None
    num_validations: int = 0
    num_validation_batches: int = 0
    num_checkpoints: int = 0
    starts_epoch: bool = False  # of a loader with workers that feeds training

    @property
    def seconds(self) -> float:
        """From the end of the step before to its own."""
        return self.end - self.start

    @property
    def regular(self) -> float:
        """Without what does not belong to every step."""
        return self.seconds - sum(self.phases.get(p, 0.0) for p in RARE)


def fold(
    spans: Sequence[Span],
    bounds: Sequence[tuple[float, str, bool]],
    *,
    with_workers: frozenset[int] = frozenset(),
) -> list[FoldedStep]:
    """Make steps of one process's spans and boundaries.

    `bounds` are (end of step, label, counted); a label "turn" only moves the start of the next step. Loaders in
    `with_workers` fill a queue at the start of an epoch, so their first batch belongs to the epoch's start.
    """
    roles = loader_roles(spans)
    spans = phase_spans(spans, with_workers=with_workers)
    steps = _empty_steps(bounds)
    starting = {number for number, role in roles.items() if role == "train" and number in with_workers}
    for step, inside in zip(steps, _by_step(spans, steps)):
        _fill(step, inside, roles)
        step.starts_epoch = any(s.kind == "epoch_start" and s.detail in starting for s in inside)
    _unless_most(steps)
    return steps


def phase_spans(spans: Sequence[Span], *, with_workers: frozenset[int]) -> list[Span]:
    """The spans of every phase, those without a call among them, in the order of their starts."""
    roles = loader_roles(spans)
    ordered = _epoch_starts(sorted(spans, key=lambda s: (s.start, -s.end)), roles, with_workers)
    found = validations(ordered, roles)
    kept = [*_outside(ordered, found), *found]
    return sorted([*kept, *_losses(kept)], key=lambda s: (s.start, -s.end))


def _unless_most(steps: Sequence[FoldedStep]) -> None:
    """Where epochs are of a step or two, the first steps are the regular ones."""
    if 2 * sum(s.starts_epoch for s in steps) > len(steps):
        for step in steps:
            step.starts_epoch = False


def validations_of(spans: Sequence[Span]) -> list[Span]:
    """The stretches of validation among these spans; detail: [gradients recorded, batches]."""
    roles = loader_roles(spans)
    ordered = sorted(spans, key=lambda s: (s.start, -s.end))
    return validations(_epoch_starts(ordered, roles, frozenset()), roles)


def _epoch_starts(spans: list[Span], roles: dict[int, Role], with_workers: frozenset[int]) -> list[Span]:
    fresh: set[int] = set()
    changed: list[Span] = []
    for span in spans:
        if span.kind == "iter":
            fresh.add(int(span.detail))  # type: ignore[arg-type]
            changed.append(Span(kind="epoch_start", start=span.start, end=span.end, detail=span.detail))
            continue
        if span.kind == "end":
            # A validation's workers end within its last `next`; what comes later is the iterator's removal.
            if roles.get(int(span.detail)) == "train":  # type: ignore[arg-type]
                changed.append(Span(kind="epoch_start", start=span.start, end=span.end))
            continue
        if span.kind == "next":
            number = int(span.detail[0])  # type: ignore[index]
            if number in fresh:
                fresh.discard(number)
                if number in with_workers and roles.get(number) == "train":
                    changed.append(Span(kind="epoch_start", start=span.start, end=span.end, detail=number))
                    changed.append(Span(kind="batch", start=span.end, end=span.end, detail=span.detail))
                    continue
        changed.append(span)
    return changed


def _outside(spans: Sequence[Span], validations: Sequence[Span]) -> list[Span]:
    kept: list[Span] = []
    index = 0
    for span in spans:
        while index < len(validations) and validations[index].end <= span.start:
            index += 1
        inside = index < len(validations) and validations[index].start <= span.start
        if not inside or span.end > validations[index].end:
            kept.append(span)
    return kept


def _losses(spans: Sequence[Span]) -> list[Span]:
    found: list[Span] = []
    forward_end: float | None = None
    for span in sorted(spans, key=lambda s: s.end):
        if span.kind == "forward":
            flags = int(span.detail[1])  # type: ignore[index]
            forward_end = span.end if flags & TRAINING and flags & GRAD else None
        elif span.kind == "backward":
            if forward_end is not None and forward_end <= span.start:
                found.append(Span(kind="loss", start=forward_end, end=span.start))
            forward_end = None
        elif span.kind not in ("sync", "logging", "copy", "zero_grad"):
            forward_end = None
    return found


def _empty_steps(bounds: Sequence[tuple[float, str, bool]]) -> list[FoldedStep]:
    steps: list[FoldedStep] = []
    start: float | None = None
    segment = 0
    for end, label, counted in bounds:
        if label == "turn":
            segment += 1
        elif start is not None:
            steps.append(FoldedStep(start=start, end=end, label=label, counted=counted, segment=segment))
        start = end
    return steps


def _by_step(spans: Sequence[Span], steps: Sequence[FoldedStep]) -> Iterable[list[Span]]:
    """The spans that end in each step, clipped to its start."""
    ordered = sorted(spans, key=lambda s: s.end)
    index = 0
    for step in steps:
        while index < len(ordered) and ordered[index].end <= step.start:
            index += 1
        inside: list[Span] = []
        while index < len(ordered) and ordered[index].end <= step.end + 1e-9:
            span = ordered[index]
            start = max(span.start, step.start)
            inside.append(Span(kind=span.kind, start=start, end=span.end, detail=span.detail))
            index += 1
        yield sorted(inside, key=lambda s: (s.start, -s.end))


def _fill(step: FoldedStep, spans: Sequence[Span], roles: dict[int, Role]) -> None:
    phases: dict[str, float] = defaultdict(float)
    open_spans: list[Span] = []
    for span in spans:
        while open_spans and open_spans[-1].end <= span.start:
            open_spans.pop()
        _count(step, span, roles)
        if any(outer.kind in KEPT_WHOLE for outer in open_spans) or span.kind in ("batch", "step"):
            continue
        kind = "data_wait" if span.kind == "next" else span.kind
        phases[kind] += span.end - span.start
        if open_spans:
            outer = "data_wait" if open_spans[-1].kind == "next" else open_spans[-1].kind
            phases[outer] -= min(span.end, open_spans[-1].end) - span.start
        open_spans.append(span)
    step.phases = {phase: max(0.0, phases[phase]) for phase in PHASES if phase in phases}


def _count(step: FoldedStep, span: Span, roles: dict[int, Role]) -> None:
    if span.kind in ("next", "batch"):
        number, length, _ = span.detail  # type: ignore[misc]
        if length is not None and roles.get(int(number)) == "train":
            step.num_batches += 1
            if length != UNKNOWN_LENGTH:
                step.num_samples = (step.num_samples or 0) + int(length)
    elif span.kind == "forward" and not roles:
        first = span.detail[2]  # type: ignore[index]
        if first is not None and step.num_samples is None:
            step.num_samples = int(first)
    elif span.kind == "validation":
        step.num_validations += 1
        step.num_validation_batches += int(span.detail[1])  # type: ignore[index]
    elif span.kind == "checkpoint":
        step.num_checkpoints += 1


# ------------------------------------------------------------------------------------------ means of steps


def segment_means(steps: Sequence[FoldedStep], label: str) -> list[float]:
    """Mean regular step of each segment under one label, in seconds; the first step of an epoch is no regular one.

    The last batch of an epoch is often a small one. Where batches differ, steps count by their samples, so that a
    segment that met small ones does not seem faster.
    """
    segments: dict[int, list[FoldedStep]] = defaultdict(list)
    for step in steps:
        if step.label == label and step.counted and not step.starts_epoch:
            segments[step.segment].append(step)
    typical = typical_size(s.num_samples for s in steps)
    return [_mean_regular(inside, typical) for inside in segments.values()]


def _mean_regular(steps: Sequence[FoldedStep], typical: float | None) -> float:
    return mean_at_size([s.regular for s in steps], [s.num_samples for s in steps], typical=typical)


def epoch_starts(steps: Sequence[FoldedStep]) -> list[float]:
    """Seconds that each epoch's first step takes longer than the others; of a larger batch, than that many samples do."""
    within = [s for s in steps if not s.starts_epoch]
    typical = typical_size(s.num_samples for s in steps)
    mean = _mean_regular(within, typical) if within else 0.0
    found: list[float] = []
    for step in steps:
        if "epoch_start" in step.phases:
            usual = mean * step.num_samples / typical if typical and step.num_samples else mean
            found.append(max(EPSILON, step.phases["epoch_start"] + step.regular - usual))
    return found


def validation_cycles(steps: Sequence[FoldedStep]) -> list[float]:
    """Mean seconds of a step from one validation to the next, the first of both included.

    What validation leaves behind (memory to be freed, caches to be filled) slows the steps after it, too.
    """
    cycles: list[list[float]] = []
    for step in steps:
        if step.num_validations:
            cycles.append([])
        if cycles:
            cycles[-1].append(step.seconds)
    return [statistics.fmean(seconds) for seconds in cycles[:-1]]
