"""One process's RawRun, and the stage lines of its workers, become the steps, facts and lines of a Run."""

from __future__ import annotations

import linecache
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from hasten.launch.folding import FoldedStep, fold, segment_means, validations_of
from hasten.launch.loader_work import loader_facts
from hasten.launch.roles import loader_roles
from hasten.raw_run import (
    AUTOCAST,
    MARKED,
    PLAIN,
    WARM_UP,
    Copy,
    Forward,
    Place,
    RawOptimizer,
    RawRun,
    Span,
    StageLine,
    Sync,
    ZeroGrad,
)
from hasten.records import (
    RARE,
    CopyFacts,
    Ddp,
    Facts,
    HotLine,
    Interval,
    ModelFacts,
    OptimizerFacts,
    Overhead,
    Phase,
    Step,
    SyncPoint,
    Where,
)
from hasten.stats import ratio_interval

MOST_STEPS = 60_000  # kept in a Run; a window of 60 s holds more only below 1 ms a step
MOST_LINES = 40


class Recorded:
    """A raw record, folded. The folding is done once; everything else reads it."""

    def __init__(self, raw: RawRun, stages: Sequence[StageLine], *, exit_code: int | None = None) -> None:
        self.raw = raw
        self.exit_code = exit_code  # of the script; None: hasten ended it
        self.stages = [line for line in stages if not line.is_task]
        self.tasks = [line for line in stages if line.is_task]
        self.spans = raw.spans
        self.steps = fold(self.spans, raw.segments, with_workers=raw.with_workers)
        self.roles = loader_roles(self.spans)
        if not any(s.counted for s in self.steps):
            # A short script ended within the warm-up: its later steps, marked, are all there is.
            for step in self.steps[1:]:
                step.name, step.counted = MARKED, True
        self.measured = [s for s in self.steps if s.counted and s.name in (PLAIN, MARKED)]
        self.marked = [s for s in self.measured if s.name == MARKED]
        self._time_on_device()

    # ---------------------------------------------------------------------------------------------- steps

    def steps_record(self, *, zero: float) -> tuple[Step, ...]:
        """The measured steps, times since `zero`."""
        script = self._script_share()
        return tuple(_step(n, step, zero, script) for n, step in enumerate(self.measured[:MOST_STEPS]))

    def _time_on_device(self) -> None:
        """Give each step what its spans took on the device."""
        starts = [step.start for step in self.steps]
        for kind, start, taken, waited in self.raw.device_spans:
            index = bisect_right(starts, start) - 1
            if index >= 0 and start < self.steps[index].end:
                device = self.steps[index].device
                device[kind] = device.get(kind, 0.0) + taken
                self.steps[index].device_waited += taken * waited

    def _script_share(self) -> float:
        """Share of the time between spans in which the sampler met a known line."""
        known = unknown = 0.0
        for place, phase, seconds in self.raw.lines:
            if phase == "between":
                known, unknown = known + seconds * (place is not None), unknown + seconds * (place is None)
        return known / (known + unknown) if known + unknown else 0.0

    def hot_lines(self) -> tuple[HotLine, ...]:
        """The user's lines that took most, in seconds a step."""
        marked = sum(s.seconds for s in self.marked)
        if not marked:
            return ()
        total: dict[tuple[str, int, str, Phase], float] = defaultdict(float)
        losses = self._share_before_backward()
        for place, phase, seconds in self.raw.lines:
            if place is not None and phase == "loss":
                total[(*place, "loss")] += losses * seconds
                total[(*place, "script")] += (1.0 - losses) * seconds
            elif place is not None:
                total[(*place, "script" if phase == "between" else phase)] += seconds
        lines = [
            HotLine(where=where(place[:3]), phase=place[3], seconds=seconds / len(self.marked))
            for place, seconds in total.items()
            if seconds
        ]
        return tuple(sorted([*lines, *self._worker_lines()], key=lambda line: -line.seconds)[:MOST_LINES])

    def _share_before_backward(self) -> float:
        """Share of the time sampled after a forward that a backward followed; 1.0 unless it is less than half.

        The sampler cannot know what will follow a forward; the marks do. Smaller differences are those of sampling.
        """
        sampled = sum(seconds for place, phase, seconds in self.raw.lines if phase == "loss" and place is not None)
        marked = sum(step.phases.get("loss", 0.0) for step in self.marked)
        return marked / sampled if sampled and marked < 0.5 * sampled else 1.0

    def _worker_lines(self) -> list[HotLine]:
        total: dict[tuple[str, int, str], float] = defaultdict(float)
        batches = 0
        for line in self.stages:
            batches += line.lines is not None
            for place, _phase, seconds in line.lines or ():
                if place is not None:
                    total[place] += seconds
        per_step = statistics.fmean([s.batches_by_loader.total() for s in self.measured] or [1.0])
        return [
            HotLine(where=where(place), phase="data_wait", seconds=s / batches * per_step, in_worker=True)
            for place, s in total.items()
        ]

    def sync_points(self) -> tuple[SyncPoint, ...]:
        """Where the host waited for, or read, a tensor in the marked steps."""
        found: dict[tuple[int, str], list[float]] = defaultdict(list)
        for span in self.marked_spans():
            if isinstance(span.detail, Sync):
                found[span.detail.place, span.detail.call].append(span.end - span.start)
        steps = max(1, len(self.marked))
        points = [
            SyncPoint(kind=kind, where=self.place(place), calls=len(times) / steps, seconds=sum(times) / steps)
            for (place, kind), times in found.items()
            if place >= 0
        ]
        return tuple(sorted(points, key=lambda p: -p.seconds)[:MOST_LINES])

    def marked_spans(self) -> list[Span]:
        """The spans that end in the marked steps."""
        return _within(self.spans, [(s.start, s.end) for s in self.marked])

    def place(self, number: int) -> Where:
        """The user's line of this number."""
        return where(self.raw.places[number])

    # ---------------------------------------------------------------------------------------------- facts

    def facts(self) -> Facts:
        """What the script is."""
        raw, facts = self.raw, self.raw.facts
        zeroing = [s.detail for s in self.spans if isinstance(s.detail, ZeroGrad)]
        in_place = [detail for detail in zeroing if not detail.to_none]
        first: dict[Phase, Where] = {k: self.place(n) for k, n in raw.first_place.items() if n >= 0}
        loaders = loader_facts(self.raw, self.stages, self.roles, self.window)
        train = next((x for x in loaders if x.role == "train"), None)
        per_step = statistics.fmean([s.num_batches for s in self.measured] or [1.0])
        epoch = train.num_batches / per_step if train and train.num_batches and per_step else None
        return Facts(
            boundary=raw.boundary,
            num_threads=facts.num_threads,
            autocast=self._autocast(),
            copies=self._copies(),
            anomaly_detection=facts.anomaly_detection,
            profiler=facts.profiler,
            deterministic=facts.deterministic,
            cudnn_benchmark=facts.cudnn_benchmark,
            num_input_shapes=facts.num_input_shapes,
            tf32=facts.tf32,
            zero_grad_in_place=len(in_place) > 0.5 * len(zeroing) if zeroing else False,
            zero_grad_where=self.place(in_place[0].place) if in_place and in_place[0].place >= 0 else None,
            validation_grad=any(v.with_grad for v in validations_of(self.spans)),
            validation_where=first.get("validation"),
            subnormal_share=facts.subnormal_share,
            num_operators=raw.num_operators,
            num_calls=raw.num_calls,
            call_overhead=facts.call_overhead,
            num_flops=raw.num_flops,
            run_delay=self._a_step(raw.run_delay),
            memory_requests=self._a_step(raw.memory_requests),
            frameworks=facts.frameworks,
            device=facts.device,
            where=first,
            models=tuple(ModelFacts(**vars(model)) for model in facts.models),
            optimizers=tuple(map(self._optimizer, facts.optimizers)),
            loaders=loaders,
            steps_per_epoch=epoch,
            steps_per_validation=self._steps_per(sum(s.num_validations for s in self.measured), epoch),
            steps_per_checkpoint=self._steps_per(sum(s.num_checkpoints for s in self.measured), epoch),
            gather_seconds=facts.gather_seconds,
            ddps=tuple(Ddp(**vars(ddp)) for ddp in raw.group.ddps) if raw.group is not None else (),
        )

    def _steps_per(self, events: int, epoch: float | None) -> float | None:
        """Steps from one event to the next; one alone, in a window shorter than an epoch, is taken to come once an epoch."""
        if not events:
            return None
        number = len(self.measured)
        return epoch if events == 1 and epoch is not None and epoch > number else number / events

    @property
    def window(self) -> tuple[float, float]:
        """The measured steps' first and last instant."""
        return (self.measured[0].start, self.measured[-1].end) if self.measured else (0.0, 0.0)

    def _optimizer(self, raw: RawOptimizer) -> OptimizerFacts:
        number = sum(span.kind == "optimizer" and span.detail == raw.id for span in self.spans)
        return OptimizerFacts(
            name=raw.name,
            num_parameters=raw.num_parameters,
            num_tensors=raw.num_tensors,
            fused=raw.fused,
            foreach=raw.foreach,
            steps_per_step=number / max(1, len(self.steps)),
        )

    def _a_step(self, total: float | None) -> float | None:
        """What came after the warm-up, by the step."""
        return None if total is None else total / max(1, sum(s.name != WARM_UP for s in self.steps))

    def _autocast(self) -> bool:
        return any(isinstance(s.detail, Forward) and s.detail.flags & AUTOCAST for s in self.spans)

    def _copies(self) -> CopyFacts | None:
        copies = [s.detail for s in self.marked_spans() if isinstance(s.detail, Copy)]
        if not copies:
            return None
        total = sum(copy.num_bytes for copy in copies) or 1
        return CopyFacts(
            num_bytes=total / len(self.marked),
            pinned=sum(copy.num_bytes for copy in copies if copy.pinned) / total,
            blocking=sum(copy.num_bytes for copy in copies if copy.blocking) / total,
            dtypes=tuple(sorted({copy.dtype.removeprefix("torch.") for copy in copies})),
            where=self.place(copies[0].place) if copies[0].place >= 0 else None,
        )

    # ------------------------------------------------------------------------------------------- overhead

    def overhead(self, *, sampler_cpu: float) -> Overhead:
        """What marking cost in this run, from its interleaved segments."""
        means = {name: segment_means(self.steps, name) for name in (PLAIN, MARKED)}
        ratio = None
        if min(map(len, means.values())) >= 2:
            ratio = Interval(*ratio_interval(means[MARKED], means[PLAIN]))
        marked = len(self.marked_spans())
        cost = self.raw.seconds_per_mark
        plain_steps = [s for s in self.measured if s.name == PLAIN]
        kept = sum(1 for _ in _within(self.spans, [(s.start, s.end) for s in plain_steps]))
        return Overhead(
            ratio=ratio,
            marks_per_step=marked / max(1, len(self.marked)),
            seconds_per_mark=cost,
            hook_seconds=cost * kept / max(1, len(plain_steps)),
            sampler_cpu=sampler_cpu,
        )


def where(place: Place) -> Where:
    """A place as a record, with its source line where the file can be read."""
    file, line, function = place
    return Where(
        file=file,
        line=line,
        function="" if function == "<module>" else function,
        source=linecache.getline(file, line).strip()[:160],
    )


def _step(index: int, step: FoldedStep, zero: float, script: float) -> Step:
    phases: dict[Phase, float] = dict(step.phases)
    marked = step.name == MARKED
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
