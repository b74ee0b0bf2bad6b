"""Spans become steps: whose each instant of the training thread was.

In: the spans and step boundaries of one process's raw record. Out: exclusive seconds by phase for each step.
Refuses to know files, clocks and processes: it is tested on hand-written spans.

A span counts for what its inner spans leave of it. Two phases have no call to hook and are made here: `loss`, from
the end of a training forward to the backward after it, and `validation`, from the first to the last event of a
stretch in which batches are looked at but not learned from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hasten.measurement.inside.marks import GRAD, OUTPUT_GRAD, TRAINING, UNKNOWN_LENGTH

KEPT_WHOLE = ("validation", "checkpoint")  # what happens inside these counts for them
LEARNING = ("backward", "optimizer", "step")


@dataclass(kw_only=True)
class Span:
    """One span of the training thread."""

    kind: str
    start: float
    end: float
    detail: object = None


@dataclass(kw_only=True)
class FoldedStep:
    """One step with its exclusive seconds."""

    start: float
    end: float
    label: str
    counted: bool
    segment: int = 0  # how many segments came before its own
    phases: dict[str, float] = field(default_factory=dict)
    num_batches: int = 0
    num_samples: int | None = None
    num_validations: int = 0
    num_validation_batches: int = 0
    num_checkpoints: int = 0
    num_epoch_starts: int = 0

    @property
    def seconds(self) -> float:
        """From the end of the step before to its own."""
        return self.end - self.start

    @property
    def regular(self) -> float:
        """Without what does not belong to every step: epoch start, validation, checkpoint."""
        return self.seconds - sum(self.phases.get(p, 0.0) for p in ("epoch_start", *KEPT_WHOLE))


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
    spans = sorted(spans, key=lambda s: (s.start, -s.end))
    spans = _epoch_starts(spans, roles, with_workers)
    validations = _validations(spans, roles)
    spans = [*_outside(spans, validations), *validations]
    spans = sorted([*spans, *_losses(spans)], key=lambda s: (s.start, -s.end))
    steps = _empty_steps(bounds)
    for step, inside in zip(steps, _by_step(spans, steps)):
        _fill(step, inside, roles)
    return steps


def validations_of(spans: Sequence[Span]) -> list[Span]:
    """The stretches of validation among these spans; detail: [gradients recorded, batches]."""
    roles = loader_roles(spans)
    ordered = sorted(spans, key=lambda s: (s.start, -s.end))
    return _validations(_epoch_starts(ordered, roles, frozenset()), roles)


def loader_roles(spans: Sequence[Span]) -> dict[int, str]:
    """For each loader, "train" or "validation": whether its batches are followed by a backward."""
    groups: dict[int, list[bool]] = defaultdict(list)
    batches: dict[int, int] = defaultdict(int)
    current: set[int] = set()
    looked = learned = False
    for span in sorted(spans, key=lambda s: s.end):
        if span.kind == "next":
            number = int(span.detail[0])  # type: ignore[index]
            if span.detail[1] is None:  # type: ignore[index]
                continue  # the loader was exhausted: no batch came
            batches[number] += 1
            # Batches of several loaders taken before any forward belong together.
            if looked or learned:
                for member in current:
                    groups[member].append(learned)
                current, looked, learned = set(), False, False
            current.add(number)
        elif span.kind == "forward":
            looked = True
        elif span.kind in LEARNING:
            learned = True
    roles = {
        number: "validation" if votes and sum(votes) < 0.1 * len(votes) else "train"
        for number, votes in ((n, groups.get(n, [])) for n in batches)
    }
    if roles and "train" not in roles.values():
        roles[max(batches, key=lambda n: batches[n])] = "train"
    return roles


def _epoch_starts(spans: list[Span], roles: dict[int, str], with_workers: frozenset[int]) -> list[Span]:
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


def _validations(spans: Sequence[Span], roles: dict[int, str]) -> list[Span]:
    """Stretches of validation events with no training event between them; detail: [gradients recorded, batches]."""
    found: list[Span] = []
    stretch: list[Span] = []
    for span, validating in _judged(spans, roles):
        if validating:
            stretch.append(span)
        elif stretch:
            found.append(_joined(stretch))
            stretch = []
    return [*found, _joined(stretch)] if stretch else found


def _joined(stretch: Sequence[Span]) -> Span:
    forwards = [int(s.detail[1]) for s in stretch if s.kind == "forward"]  # type: ignore[index]
    grad = any(flags & OUTPUT_GRAD or (flags & GRAD and flags & TRAINING) for flags in forwards)
    batches = sum(s.kind in ("next", "batch") and s.detail[1] is not None for s in stretch)  # type: ignore[index]
    start, end = min(s.start for s in stretch), max(s.end for s in stretch)
    return Span(kind="validation", start=start, end=end, detail=[grad, batches or len(forwards)])


def _judged(spans: Sequence[Span], roles: dict[int, str]) -> Iterable[tuple[Span, bool]]:
    """Each telling event, and whether it is validation.

    A batch is what its loader is. A forward is what the batch before it is; but one without gradients after the
    last backward of a training batch looks back at what was learned. Where no loader is used, an evaluation
    forward counts only for a model that is also trained: a frozen teacher is part of the step.
    """
    forwards = [s for s in spans if s.kind == "forward"]
    trained = {_model_of(s) for s in forwards if not _evaluates(s)}
    evaluated = {_model_of(s) for s in forwards if not _flags_of(s) & TRAINING}
    for group, role in _groups(spans, roles):
        learned = max((s.end for s in group if s.kind in LEARNING), default=None)
        validating = False
        for span, after in zip(group, [*group[1:], None]):
            if span.kind in LEARNING:
                validating = False
            elif span.kind != "forward":
                validating = role == "validation"
            elif _evaluates(span):
                late = learned is not None and span.start >= learned
                # Unmarked steps hold no training forward: there nothing says that a model is a teacher.
                known = not _flags_of(span) & TRAINING and (_model_of(span) in trained or not trained)
                validating = role == "validation" or (late if role == "train" else known)
            elif role != "validation":
                # A loss module is always in training mode: it goes with what it is computed from.
                lone = _model_of(span) not in evaluated
                validating = validating and lone and (after is None or after.kind not in LEARNING)
            yield span, validating


def _model_of(forward: Span) -> int:
    return int(forward.detail[0])  # type: ignore[index]


def _flags_of(forward: Span) -> int:
    return int(forward.detail[1])  # type: ignore[index]


def _evaluates(forward: Span) -> bool:
    flags = _flags_of(forward)
    return not (flags & TRAINING and flags & GRAD)


def _groups(spans: Sequence[Span], roles: dict[int, str]) -> Iterable[tuple[list[Span], str | None]]:
    """Events from one batch to the next, with the role of the batch's loader; None before the first batch."""
    group: list[Span] = []
    role: str | None = None
    for span in spans:
        number = _loader_of(span)
        # A `next` that found the loader exhausted gave no batch: what comes after it still follows the last one.
        ended = span.kind == "next" and span.detail[1] is None  # type: ignore[index]
        if number is not None and number in roles and not ended:
            yield group, role
            group, role = [], roles[number]
        if number is not None or span.kind in ("forward", *LEARNING):
            group.append(span)
    yield group, role


def _loader_of(span: Span) -> int | None:
    if span.kind in ("next", "batch"):
        return int(span.detail[0])  # type: ignore[index]
    return span.detail if span.kind == "epoch_start" and isinstance(span.detail, int) else None


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


def _fill(step: FoldedStep, spans: Sequence[Span], roles: dict[int, str]) -> None:
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
    step.phases = {kind: max(0.0, seconds) for kind, seconds in phases.items()}


def _count(step: FoldedStep, span: Span, roles: dict[int, str]) -> None:
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
    elif span.kind == "epoch_start" and roles.get(span.detail) == "train":  # type: ignore[arg-type]
        step.num_epoch_starts += 1
