"""Which loader trains and which validates, and which parts of a script are validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hasten.raw_run import GRAD, OUTPUT_GRAD, TRAINING, Fetched, Forward, Span
from hasten.records import Role

LEARNING = ("backward", "optimizer", "step")


class Validation(NamedTuple):
    """One validation."""

    start: float
    end: float
    with_grad: bool  # gradients were recorded
    num_batches: int


def loader_roles(spans: Sequence[Span]) -> dict[int, Role]:
    """For each loader, "train" or "validation": whether its batches are followed by a backward."""
    groups: dict[int, list[bool]] = defaultdict(list)
    batches: dict[int, int] = defaultdict(int)
    current: set[int] = set()
    looked = learned = False
    for span in sorted(spans, key=lambda s: s.end):
        if isinstance(span.detail, Fetched):
            if span.detail.num_samples is None:
                continue  # the loader was exhausted: no batch came
            number = span.detail.loader
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


def validations(spans: Sequence[Span], roles: dict[int, Role]) -> list[Validation]:
    """Sequences of validation events with no training event between them."""
    found: list[Validation] = []
    joined: list[Span] = []
    for span, validating in _judged(spans, roles):
        if validating:
            joined.append(span)
        elif joined:
            found.append(_joined(joined))
            joined = []
    return [*found, _joined(joined)] if joined else found


def _joined(spans: Sequence[Span]) -> Validation:
    forwards = [s.detail.flags for s in spans if isinstance(s.detail, Forward)]
    grad = any(flags & OUTPUT_GRAD or (flags & GRAD and flags & TRAINING) for flags in forwards)
    batches = sum(isinstance(s.detail, Fetched) and s.detail.num_samples is not None for s in spans)
    start, end = min(s.start for s in spans), max(s.end for s in spans)
    return Validation(start, end, with_grad=grad, num_batches=batches or len(forwards))


def _judged(spans: Sequence[Span], roles: dict[int, Role]) -> Iterable[tuple[Span, bool]]:
    """Each event that shows it, and whether it is validation.

    A batch is what its loader is. A forward is what the batch before it is; but one without gradients after the
    last backward of a training batch looks back at what was learned. Where no loader is used, an evaluation
    forward counts only for a model that is also trained: a frozen teacher is part of the step.
    """
    forwards = [s.detail for s in spans if isinstance(s.detail, Forward)]
    trained = {forward.model for forward in forwards if not evaluates(forward)}
    evaluated = {forward.model for forward in forwards if not forward.flags & TRAINING}
    for group, role in _groups(spans, roles):
        learned = max((s.end for s in group if s.kind in LEARNING), default=None)
        validating = False
        for span, after in zip(group, [*group[1:], None]):
            if span.kind in LEARNING:
                validating = False
            elif not isinstance(span.detail, Forward):
                validating = role == "validation"
            elif evaluates(span.detail):
                late = learned is not None and span.start >= learned
                # Unmarked steps hold no training forward: there nothing says that a model is a teacher.
                known = not span.detail.flags & TRAINING and (span.detail.model in trained or not trained)
                validating = role == "validation" or (late if role == "train" else known)
            elif role != "validation":
                # A loss module is always in training mode: it goes with what it is computed from.
                lone = span.detail.model not in evaluated
                validating = validating and lone and (after is None or after.kind not in LEARNING)
            yield span, validating


def evaluates(forward: Forward) -> bool:
    """Whether nothing can be learned from it."""
    return not (forward.flags & TRAINING and forward.flags & GRAD)


def _groups(spans: Sequence[Span], roles: dict[int, Role]) -> Iterable[tuple[list[Span], str | None]]:
    """Events from one batch to the next, with the role of the batch's loader; None before the first batch."""
    group: list[Span] = []
    role: str | None = None
    for span in spans:
        number = _loader_of(span)
        # A `next` that found the loader exhausted gave no batch: what comes after it still follows the last one.
        ended = isinstance(span.detail, Fetched) and span.detail.num_samples is None
        if number is not None and number in roles and not ended:
            yield group, role
            group, role = [], roles[number]
        if number is not None or span.kind in ("forward", *LEARNING):
            group.append(span)
    yield group, role


def _loader_of(span: Span) -> int | None:
    if isinstance(span.detail, Fetched):
        return span.detail.loader
    return span.detail if span.kind == "epoch_start" and isinstance(span.detail, int) else None
