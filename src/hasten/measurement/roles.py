"""Which loader trains and which validates, and which stretches of a script are validation.

In: spans in the order of their starts. Out: roles by loader, and spans of validation. Refuses to know steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hasten.measurement.inside.marks import GRAD, OUTPUT_GRAD, TRAINING
from hasten.records import Role

LEARNING = ("backward", "optimizer", "step")


@dataclass(kw_only=True)
class Span:
    """One span of the training thread."""

    kind: str
    start: float
    end: float
    detail: object = None


def loader_roles(spans: Sequence[Span]) -> dict[int, Role]:
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
    roles: dict[int, Role] = {
        number: "validation" if votes and sum(votes) < 0.1 * len(votes) else "train"
        for number, votes in ((n, groups.get(n, [])) for n in batches)
    }
    if roles and "train" not in roles.values():
        roles[max(batches, key=lambda n: batches[n])] = "train"
    return roles


def validations(spans: Sequence[Span], roles: dict[int, Role]) -> list[Span]:
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


def _judged(spans: Sequence[Span], roles: dict[int, Role]) -> Iterable[tuple[Span, bool]]:
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


def _groups(spans: Sequence[Span], roles: dict[int, Role]) -> Iterable[tuple[list[Span], str | None]]:
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
