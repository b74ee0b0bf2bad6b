"""A few real steps become lanes: what the training thread, the loader's workers and the device did at the same time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hasten.launch.folding import KEPT_WHOLE, FoldedStep, phase_spans
from hasten.launch.recorder import Recorded
from hasten.raw_run import RawRun, Span, StageLine
from hasten.records import RARE, Bar, Timeline

NUM_STEPS = 5
MOST_BARS = 600
VISIBLE = 1 / 2000  # of the timeline: a shorter piece is less than half a pixel of it
SAME_INSTANT = 1e-6  # seconds
NO_PHASE = ("batch", "step")


def timeline_of(recorded: Recorded, *, zero: float) -> Timeline | None:
    """The steps in which the least out of the ordinary happened; None where there are too few that were marked."""
    steps = _chosen(recorded.marked)
    if not steps:
        return None
    spans = phase_spans(recorded.spans, with_workers=recorded.raw.with_workers)
    start, end = steps[0].start, steps[-1].end
    main = _joined(_main(spans, start, end), shortest=VISIBLE * (end - start))
    bars = [*main, *_workers(recorded, start, end), *_device(recorded.raw, start, end)]
    if len(bars) > MOST_BARS:
        room = start + sorted(bar.start for bar in bars)[MOST_BARS]
        end = max((step.end for step in steps if step.end <= room), default=room)
        bars = [_cut(bar, end - start) for bar in bars if bar.start < end - start]
    return Timeline(
        start=start - zero,
        seconds=end - start,
        step_ends=tuple(step.end - start for step in steps if step.end <= end),
        bars=tuple(bars),
    )


def _chosen(steps: Sequence[FoldedStep]) -> list[FoldedStep]:
    """Consecutive steps, next to the middle one in length and without rare phases where there are such."""
    runs = [
        list(steps[n : n + NUM_STEPS])
        for n in range(len(steps) - 1)
        if all(
            abs(a.end - b.start) < SAME_INSTANT
            for a, b in zip(steps[n : n + NUM_STEPS], steps[n + 1 : n + NUM_STEPS])
        )
    ]
    if not runs:
        return []
    longest = max(map(len, runs))
    middle = statistics.median(step.seconds for step in steps)

    def oddness(run: Sequence[FoldedStep]) -> float:
        rare = sum(step.phases.get(phase, 0.0) for step in run for phase in RARE)
        return rare + abs(statistics.fmean(step.seconds for step in run) - middle)

    return min((run for run in runs if len(run) == longest), key=oddness)


def _main(spans: Sequence[Span], start: float, end: float) -> Iterator[Bar]:
    """Every instant of the training thread to the innermost span that held it."""
    open_spans: list[list[Any]] = []  # kind, where its next piece begins, end

    def pieces(until: float) -> Iterator[Bar]:
        while open_spans and open_spans[-1][2] <= until:
            kind, begun, ended = open_spans.pop()
            yield from _bar("main", kind, begun, ended, start, end)
            if open_spans:
                open_spans[-1][1] = ended

    for span in spans:
        if span.end <= start or span.start >= end or span.kind in NO_PHASE:
            continue
        yield from pieces(span.start)
        if open_spans and open_spans[-1][0] in KEPT_WHOLE:
            continue
        if open_spans:
            yield from _bar("main", open_spans[-1][0], open_spans[-1][1], span.start, start, end)
        open_spans.append(["data_wait" if span.kind == "next" else span.kind, span.start, span.end])
    yield from pieces(float("inf"))


def _joined(bars: Iterable[Bar], *, shortest: float) -> list[Bar]:
    """With two bars of a kind and the piece between them as one, where that is too short to be seen."""
    found: list[Bar] = []
    for bar in bars:
        while len(found) > 1 and found[-1].seconds < shortest and found[-2].kind == bar.kind:
            piece, first = found.pop(), found.pop()
            if max(_gap(first, piece), _gap(piece, bar)) > SAME_INSTANT:
                found += [first, piece]
                break
            bar = Bar(lane=bar.lane, kind=bar.kind, start=first.start, seconds=bar.start + bar.seconds - first.start)
        found.append(bar)
    return found


def _cut(bar: Bar, end: float) -> Bar:
    return Bar(lane=bar.lane, kind=bar.kind, start=bar.start, seconds=min(bar.seconds, end - bar.start))


def _gap(one: Bar, other: Bar) -> float:
    return other.start - one.start - one.seconds


def _workers(recorded: Recorded, start: float, end: float) -> Iterator[Bar]:
    """Each worker's batches; within one, what its stages took, one after the other."""
    names: dict[int, str] = {}
    for line in sorted([*recorded.stages, *recorded.tasks], key=lambda line: line.start):
        if line.pid == recorded.raw.pid or line.end <= start or line.start >= end:
            continue
        lane = names.setdefault(line.pid, f"worker {len(names) + 1}")
        at = line.start
        for stage, seconds in _stages(line):
            yield from _bar(lane, stage, at, at + seconds, start, end)
            at += seconds


def _stages(line: StageLine) -> list[tuple[str, float]]:
    """Seconds of each stage of a batch, stretched over the whole of it: what is between them is nobody's."""
    taken: dict[str, float] = {}
    for stage in line.stages:
        taken[stage.name] = taken.get(stage.name, 0.0) + stage.seconds
    total = sum(taken.values())
    scale = (line.end - line.start) / total if total else 0.0
    order = ("read", "decode", "transform", "getitem", "collate")
    ranked = sorted(taken, key=lambda stage: order.index(stage) if stage in order else len(order))
    return [(stage, scale * taken[stage]) for stage in ranked]


def _device(raw: RawRun, start: float, end: float) -> Iterator[Bar]:
    """What the device did: each span begins when the host handed it over, or when the one before it ended."""
    free = float("-inf")
    for kind, begun, seconds, _ in sorted(raw.device_spans, key=lambda span: span.start):
        at = max(begun, free)
        free = at + seconds
        yield from _bar("device", kind, at, free, start, end)


def _bar(lane: str, kind: str, begun: float, ended: float, start: float, end: float) -> Iterator[Bar]:
    begun, ended = max(begun, start), min(ended, end)
    if ended > begun:
        yield Bar(lane=lane, kind=kind, start=begun - start, seconds=ended - begun)
