"""One process's raw record becomes the steps, facts and lines of a Run.

In: the JSON that the measured process wrote, and its workers' stage lines. Out: records. Refuses to measure and to
judge.
"""

from __future__ import annotations

import linecache
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hasten.measurement.folding import FoldedStep, fold, segment_means, validations_of
from hasten.measurement.inside.marks import AUTOCAST
from hasten.measurement.inside.programs import MARKED, PLAIN
from hasten.measurement.loader_work import loader_facts
from hasten.measurement.roles import Span, loader_roles
from hasten.measurement.trained import model_facts, optimizer_facts
from hasten.records import RARE, CopyFacts, Facts, HotLine, Interval, Overhead, Phase, Step, SyncPoint, Where
from hasten.stats import ratio_interval

Raw = Mapping[str, Any]  # as json.loads gave it
MOST_STEPS = 60_000  # kept in a Run; a window of 60 s holds more only below 1 ms a step
MOST_LINES = 40


class Recorded:
    """A raw record, folded. The folding is done once; everything else reads it."""

    def __init__(self, raw: Raw, stages: Sequence[Raw], *, exit_code: int | None = None) -> None:
        self.raw = raw
        self.exit_code = exit_code  # of the script; None: hasten ended it
        self.stages = [line for line in stages if not line.get("ticket")]
        self.tickets = [line for line in stages if line.get("ticket")]  # of hasten's own loader: lanes, no costs
        self.spans = [Span(kind=k, start=s, end=e, detail=d) for k, s, e, d in raw["spans"]]
        workers = {n for n, facts in enumerate(raw["loaders"]) if facts.get("num_workers")}
        self.steps = fold(self.spans, raw["bounds"], with_workers=frozenset(workers))
        self.roles = loader_roles(self.spans)
        if not any(s.counted for s in self.steps):
            # A short script ended within the warm-up: its later steps, marked, are all there is.
            for step in self.steps[1:]:
                step.label, step.counted = MARKED, True
        self.measured = [s for s in self.steps if s.counted and s.label in (PLAIN, MARKED)]
        self.marked = [s for s in self.measured if s.label == MARKED]
        self._time_on_device()

    # ---------------------------------------------------------------------------------------------- steps

    def steps_record(self, *, zero: float) -> tuple[Step, ...]:
        """The measured steps, times since `zero`."""
        script = self._script_share()
        return tuple(_step(n, step, zero, script) for n, step in enumerate(self.measured[:MOST_STEPS]))

    def _time_on_device(self) -> None:
        """Give each step what its spans took on the device."""
        starts = [step.start for step in self.steps]
        for kind, start, taken, waited in self.raw.get("device_spans", ()):
            index = bisect_right(starts, start) - 1
            if index >= 0 and start < self.steps[index].end:
                device = self.steps[index].device
                device[kind] = device.get(kind, 0.0) + taken
                self.steps[index].device_waited += taken * waited

    def _script_share(self) -> float:
        """Share of the time between spans in which the sampler met a known line."""
        known = unknown = 0.0
        for place, phase, seconds in self.raw["lines"]:
            if phase == "between":
                known, unknown = known + seconds * (place is not None), unknown + seconds * (place is None)
        return known / (known + unknown) if known + unknown else 0.0

    def hot_lines(self) -> tuple[HotLine, ...]:
        """The user's lines that took most, in seconds a step."""
        marked = sum(s.seconds for s in self.marked)
        if not marked:
            return ()
        total: dict[tuple[str, int, str, Phase], float] = defaultdict(float)
        for place, phase, seconds in self.raw["lines"]:
            if place is not None:
                total[(*place, "script" if phase == "between" else phase)] += seconds
        lines = [
            HotLine(where=where(place[:3]), phase=place[3], seconds=seconds / len(self.marked))
            for place, seconds in total.items()
        ]
        return tuple(sorted([*lines, *self._worker_lines()], key=lambda line: -line.seconds)[:MOST_LINES])

    def _worker_lines(self) -> list[HotLine]:
        total: dict[tuple[str, int, str], float] = defaultdict(float)
        batches = 0
        for line in self.stages:
            if "lines" in line:
                batches += 1
                for place, seconds in line["lines"]:
                    if place is not None:
                        total[tuple(place)] += seconds
        per_step = statistics.fmean([s.num_batches for s in self.measured] or [1.0])
        return [
            HotLine(where=where(place), phase="data_wait", seconds=s / batches * per_step, in_worker=True)
            for place, s in total.items()
        ]

    def sync_points(self) -> tuple[SyncPoint, ...]:
        """Where the host waited for, or read, a tensor in the marked steps."""
        found: dict[tuple[int, str], list[float]] = defaultdict(list)
        ranges = [(s.start, s.end) for s in self.marked]
        for span in _within(self.spans, ranges):
            if span.kind == "sync":
                found[span.detail[0], span.detail[1]].append(span.end - span.start)  # type: ignore[index]
        steps = max(1, len(self.marked))
        points = [
            SyncPoint(kind=kind, where=self.place(place), calls=len(times) / steps, seconds=sum(times) / steps)
            for (place, kind), times in found.items()
            if place >= 0
        ]
        return tuple(sorted(points, key=lambda p: -p.seconds)[:MOST_LINES])

    def place(self, number: int) -> Where:
        """The user's line of this number."""
        return where(self.raw["places"][number])

    # ---------------------------------------------------------------------------------------------- facts

    def facts(self) -> Facts:
        """What the script is."""
        raw, facts = self.raw, self.raw.get("facts", {})
        zeroing = [s for s in self.spans if s.kind == "zero_grad"]
        in_place = [s for s in zeroing if not s.detail[1]]  # type: ignore[index]
        first = {k: self.place(n) for k, n in raw["first_place"].items() if n >= 0}
        validations = sum(s.num_validations for s in self.measured)
        checkpoints = sum(s.num_checkpoints for s in self.measured)
        loaders = loader_facts(self.raw, self.stages, self.roles, self.window)
        train = next((x for x in loaders if x.role == "train"), None)
        number = len(self.measured)
        per_step = statistics.fmean([s.num_batches for s in self.measured] or [1.0])
        return Facts(
            boundary=raw["boundary"],
            num_threads=facts.get("num_threads", 1),
            autocast=self._autocast(),
            copies=self._copies(),
            anomaly_detection=facts.get("anomaly_detection", False),
            profiler=facts.get("profiler", False),
            deterministic=facts.get("deterministic", False),
            cudnn_benchmark=facts.get("cudnn_benchmark"),
            num_input_shapes=facts.get("num_input_shapes"),
            tf32=facts.get("tf32"),
            zero_grad_in_place=len(in_place) > 0.5 * len(zeroing) if zeroing else False,
            zero_grad_where=self.place(in_place[0].detail[0])  # type: ignore[index]
            if in_place and in_place[0].detail[0] >= 0  # type: ignore[index]
            else None,
            validation_grad=self._validation_grad(),
            validation_where=first.get("validation"),
            subnormal_share=raw.get("subnormal_share"),
            num_operators=raw.get("extra", {}).get("num_operators"),
            num_calls=raw.get("extra", {}).get("num_calls"),
            num_flops=raw.get("extra", {}).get("num_flops"),
            run_delay=self._grown("run_delay"),
            memory_requests=self._grown("memory_requests"),
            frameworks=tuple(facts.get("frameworks", ())),
            device=facts.get("device", "cpu"),
            where=first,
            models=tuple(model_facts(m) for m in raw.get("models", ())),
            optimizers=tuple(
                optimizer_facts(o, self.spans, num_steps=len(self.steps)) for o in raw.get("optimizers", ())
            ),
            loaders=loaders,
            steps_per_epoch=train.num_batches / per_step if train and train.num_batches and per_step else None,
            steps_per_validation=number / validations if validations else None,
            steps_per_checkpoint=number / checkpoints if checkpoints else None,
            gather_seconds=raw.get("gather_seconds"),
        )

    @property
    def window(self) -> tuple[float, float]:
        """The measured steps' first and last instant."""
        return (self.measured[0].start, self.measured[-1].end) if self.measured else (0.0, 0.0)

    def _validation_grad(self) -> bool:
        return any(bool(v.detail[0]) for v in validations_of(self.spans))  # type: ignore[index]

    def _grown(self, name: str) -> float | None:
        """What a counter grew by, a step."""
        extra = self.raw.get("extra", {})
        before, after = extra.get(f"{name}_before"), extra.get(f"{name}_after")
        steps = sum(s.label != "warm-up" for s in self.steps)
        return (after - before) / max(1, steps) if before is not None and after is not None else None

    def _autocast(self) -> bool:
        forwards = [int(s.detail[1]) for s in self.spans if s.kind == "forward"]  # type: ignore[index]
        return any(flags & AUTOCAST for flags in forwards)

    def _copies(self) -> CopyFacts | None:
        inside = _within(self.spans, [(s.start, s.end) for s in self.marked])
        copies: list[Any] = [s.detail for s in inside if s.kind == "copy"]
        if not copies:
            return None
        total = sum(c[1] for c in copies) or 1
        return CopyFacts(
            num_bytes=total / len(self.marked),
            pinned=sum(c[1] for c in copies if c[2]) / total,
            blocking=sum(c[1] for c in copies if c[3]) / total,
            dtypes=tuple(sorted({c[4].removeprefix("torch.") for c in copies})),
            where=self.place(copies[0][0]) if copies[0][0] >= 0 else None,
        )

    # ------------------------------------------------------------------------------------------- overhead

    def overhead(self, *, sampler_cpu: float) -> Overhead:
        """What marking cost in this run, from its interleaved segments."""
        means = {label: segment_means(self.steps, label) for label in (PLAIN, MARKED)}
        ratio = None
        if min(map(len, means.values())) >= 2:
            ratio = Interval(*ratio_interval(means[MARKED], means[PLAIN]))
        marked = sum(1 for _ in _within(self.spans, [(s.start, s.end) for s in self.marked]))
        cost = float(self.raw.get("seconds_per_mark", 0.0))
        plain_steps = [s for s in self.measured if s.label == PLAIN]
        kept = sum(1 for _ in _within(self.spans, [(s.start, s.end) for s in plain_steps]))
        return Overhead(
            ratio=ratio,
            marks_per_step=marked / max(1, len(self.marked)),
            seconds_per_mark=cost,
            record_seconds=cost * kept / max(1, len(plain_steps)),
            sampler_cpu=sampler_cpu,
        )


def where(place: Sequence[Any]) -> Where:
    """A place as a record, with its source line where the file can be read."""
    file, line, function = place
    return Where(
        file=str(file),
        line=int(line),
        function="" if function == "<module>" else str(function),
        source=linecache.getline(str(file), int(line)).strip()[:160],
    )


def _step(index: int, step: FoldedStep, zero: float, script: float) -> Step:
    phases: dict[Phase, float] = dict(step.phases)
    marked = step.label == MARKED
    if marked and script:
        phases["script"] = script * max(0.0, step.seconds - sum(phases.values()))
    if not marked:
        phases = {k: v for k, v in phases.items() if k in (*RARE, "data_wait")}
    return Step(
        index=index,
        start=step.start - zero,
        seconds=step.seconds,
        marked=marked,
        phases=phases,
        device=step.device,
        device_waited=step.device_waited,
        num_batches=step.num_batches,
        num_samples=step.num_samples,
        starts_epoch=step.starts_epoch,
    )


def _within(spans: Sequence[Span], ranges: Sequence[tuple[float, float]]) -> list[Span]:
    """Spans that end within one of the ranges, which are in order and do not overlap."""
    found: list[Span] = []
    index = 0
    for span in sorted(spans, key=lambda s: s.end):
        while index < len(ranges) and ranges[index][1] < span.end:
            index += 1
        if index == len(ranges):
            break
        if ranges[index][0] < span.end:
            found.append(span)
    return found
