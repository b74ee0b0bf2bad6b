"""Turn spans into steps: each instant of the training thread belongs to one phase.

A pure function of spans and segments, tested on hand-written ones. A span counts for what its inner spans leave of it. Two
phases have no call to hook and are derived here: `loss`, from the end of a training forward to the backward after it, and
`validation`, from the first to the last event of a sequence in which batches are used without learning from them (see
`roles.py`).
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hasten.launch.roles import Validation, evaluates, loader_roles, validations
from hasten.raw_run import GRAD, JOIN, TRAINING, UNKNOWN_LENGTH, WARM_UP, Fetched, Forward, RawSegment, Span
from hasten.records import PHASES, RARE, Phase, Role
from hasten.stats import mean_at_size, typical_size

EPSILON = 1e-6  # seconds: less is nothing
KEPT_WHOLE = ("validation", "checkpoint")  # what happens inside these counts for them


@dataclass(kw_only=True)
class FoldedStep:
    """One step with its exclusive seconds."""

    start: float
    end: float
    name: str  # of its segment
    counted: bool
    is_baseline: bool = False  # so is its segment
    segment: int = 0  # how many segments came before its own
    phases: dict[Phase, float] = field(default_factory=dict)
    device: dict[Phase, float] = field(default_factory=dict)  # of the phases that have events
    device_waited: float = 0.0  # of these, in phases at whose end the device waited for the host
    batches_by_loader: Counter[int] = field(default_factory=Counter)
    num_samples: int | None = None
    num_validations: int = 0
    num_checkpoints: int = 0
    starts_epoch: bool = False  # of a loader with workers that feeds training

    @property
    def seconds(self) -> float:
        """From the end of the step before to its own."""
        return self.end - self.start

    @property
    def num_batches(self) -> int:
        """Of the training loader that gave most: those of several loaders are used together."""
        return max(self.batches_by_loader.values(), default=0)

    @property
    def regular(self) -> float:
        """Without what does not belong to every step."""
        return self.seconds - sum(self.phases.get(p, 0.0) for p in RARE)


def fold(
    spans: Sequence[Span],
    segments: Sequence[RawSegment],
    *,
    with_workers: frozenset[int] = frozenset(),
) -> list[FoldedStep]:
    """Make steps of one process's spans and segments.

    Loaders in `with_workers` fill a queue at the start of an epoch, so their first batch belongs to the epoch's start.
    """
    roles = loader_roles(spans)
    spans = phase_spans(spans, with_workers=with_workers)
    steps = _empty_steps(segments)
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
    kept = _outside(ordered, found)
    kept += [Span(kind="validation", start=v.start, end=v.end, detail=v.num_batches) for v in found]
    return sorted([*kept, *_losses(kept)], key=lambda s: (s.start, -s.end))


def _unless_most(steps: Sequence[FoldedStep]) -> None:
    """Where epochs are of a step or two, the first steps are the regular ones."""
    if 2 * sum(s.starts_epoch for s in steps) > len(steps):
        for step in steps:
            step.starts_epoch = False


def validations_of(spans: Sequence[Span]) -> list[Validation]:
    """The sequences of validation among these spans."""
    roles = loader_roles(spans)
    ordered = sorted(spans, key=lambda s: (s.start, -s.end))
    return validations(_epoch_starts(ordered, roles, frozenset()), roles)


def _epoch_starts(spans: list[Span], roles: dict[int, Role], with_workers: frozenset[int]) -> list[Span]:
    fresh: set[int] = set()
    changed: list[Span] = []
    for span in spans:
        if span.kind == "iter" and isinstance(span.detail, int):
            fresh.add(span.detail)
            changed.append(span._replace(kind="epoch_start"))
            continue
        if span.kind == "end" and isinstance(span.detail, int):
            # A validation's workers end within its last `next`; what comes later is the iterator's removal.
            if roles.get(span.detail) == "train":
                changed.append(span._replace(kind="epoch_start", detail=None))
            continue
        if isinstance(span.detail, Fetched):
            number = span.detail.loader
            if number in fresh:
                fresh.discard(number)
                if number in with_workers and roles.get(number) == "train":
                    changed.append(Span(kind="epoch_start", start=span.start, end=span.end, detail=number))
                    changed.append(Span(kind="batch", start=span.end, end=span.end, detail=span.detail))
                    continue
        changed.append(span)
    return changed


def _outside(spans: Sequence[Span], validations: Sequence[Validation]) -> list[Span]:
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
        if isinstance(span.detail, Forward):
            flags = span.detail.flags
            forward_end = span.end if flags & TRAINING and flags & GRAD else None
        elif span.kind == "backward":
            if forward_end is not None and forward_end <= span.start:
                found.append(Span(kind="loss", start=forward_end, end=span.start))
            forward_end = None
        elif span.kind not in ("sync", "logging", "copy", "zero_grad"):
            forward_end = None
    return found


def _empty_steps(segments: Sequence[RawSegment]) -> list[FoldedStep]:
    return [
        FoldedStep(
            start=start,
            end=end,
            name=segment.name,
            counted=number >= segment.settle and segment.name != WARM_UP,
            is_baseline=segment.is_baseline,
            segment=position,
        )
        for position, segment in enumerate(segments)
        for number, (start, end) in enumerate(zip((segment.began, *segment.ends), segment.ends))
        if start is not None
    ]


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
            inside.append(span._replace(start=start))
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
    if isinstance(span.detail, Fetched):
        length = span.detail.num_samples
        if length is not None and roles.get(span.detail.loader) == "train":
            step.batches_by_loader[span.detail.loader] += 1
            if length != UNKNOWN_LENGTH:
                step.num_samples = (step.num_samples or 0) + length
    elif isinstance(span.detail, Forward) and not roles and not evaluates(span.detail):
        if step.num_samples is None:
            step.num_samples = span.detail.num_samples
    elif span.kind == "validation" and isinstance(span.detail, int):
        step.num_validations += 1
    elif span.kind == "checkpoint":
        step.num_checkpoints += 1


# ------------------------------------------------------------------------------------------ means of steps


def segment_means(steps: Sequence[FoldedStep], name: str, *, is_baseline: bool = False) -> list[float]:
    """Mean regular step of each segment of a name, in seconds; the first step of an epoch is no regular one.

    The last batch of an epoch is often a small one. Where batches differ, steps count by their samples, so that a
    segment that met small ones does not seem faster.
    """
    segments = _regular_steps(steps, name, is_baseline=is_baseline)
    # Joined batches are meant to be larger: their steps are compared with each other.
    typical = typical_size(s.num_samples for s in steps if (s.name == JOIN) == (name == JOIN))
    return [_mean_regular(inside, typical) for inside in segments.values()]


def phase_means(steps: Sequence[FoldedStep], name: str, phase: Phase) -> tuple[list[float], list[float]]:
    """The same of both sides, as if every other phase took as long in each step as in the mean of all.

    What changes one phase alone shows in that phase first: the others vary by more than is saved. A phase is short and its
    work the same in every step, so a segment's median stands for it, and a step that lost its core does not.

    Returns:
        Seconds by segment: with what the segments turn on, and without.
    """
    sides = [_regular_steps(steps, name, is_baseline=is_baseline) for is_baseline in (False, True)]
    every = [step for segments in sides for inside in segments.values() for step in inside]
    rest = statistics.fmean(step.regular - step.phases.get(phase, 0.0) for step in every) if every else 0.0
    candidate, baseline = (
        [rest + statistics.median(step.phases.get(phase, 0.0) for step in inside) for inside in segments.values()]
        for segments in sides
    )
    return candidate, baseline


def _regular_steps(steps: Sequence[FoldedStep], name: str, *, is_baseline: bool) -> dict[int, list[FoldedStep]]:
    """The counted steps by segment, without those that start an epoch."""
    segments: dict[int, list[FoldedStep]] = defaultdict(list)
    for step in steps:
        is_one = step.name == name and step.is_baseline == is_baseline
        if is_one and step.counted and not step.starts_epoch:
            segments[step.segment].append(step)
    return segments


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
    if len(cycles) > 1 and len(cycles[-1]) < len(cycles[-2]):
        cycles.pop()  # the script ended within it
    return [statistics.fmean(seconds) for seconds in cycles]
