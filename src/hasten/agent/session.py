"""One training process, from its first step to the end of its window.

The session listens to the hooks, goes from segment to segment, and writes the `RawRun` of this process. Folding spans into
phases is the parent's work.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from hasten.agent import workers
from hasten.agent.batches import OwnSamples
from hasten.agent.communication import Communication, Together
from hasten.agent.device_watch import DeviceWatch
from hasten.agent.frames import LineSampler
from hasten.agent.hooks import Forwards
from hasten.agent.loaders import Loaders
from hasten.agent.marks import BETWEEN, MOST_SPANS, Marks, seconds_per_mark
from hasten.agent.models import Models
from hasten.agent.quality import Quality
from hasten.agent.segments import History, SegmentScheduler
from hasten.agent.stages import run_delay
from hasten.agent.status import StatusFile, leave
from hasten.agent.steps import Boundary
from hasten.devices import accelerator, cuda
from hasten.patches import warn
from hasten.protocol import EndedBy, write
from hasten.raw_run import Fetched, RawFacts, RawRun, Span, Sync

Given = ParamSpec("Given")
Result = TypeVar("Result")

SWITCH_INTERVAL = 5e-4  # seconds, while lines are sampled


def _standing_aside(
    method: Callable[Concatenate[Session, Given], Result],
) -> Callable[Concatenate[Session, Given], Result | None]:
    """An internal error must not reach the script: it is reported once, and measuring ends for this process."""

    @functools.wraps(method)
    def call(self: Session, *arguments: Given.args, **settings: Given.kwargs) -> Result | None:
        try:
            return method(self, *arguments, **settings)
        except Exception as error:
            self._stand_aside(error)  # pyright: ignore[reportPrivateUsage]
            return None

    return call


class Session:
    """Listens to the hooks of one process."""

    def __init__(self, folder: Path, *, history: History, marks: Marks, models: Models) -> None:
        self.folder = folder
        self.marks = marks
        self.models = models
        self.forwards = models.watcher = Forwards(marks)
        self.loaders = Loaders()
        self.scheduler = SegmentScheduler(history)
        self.scheduler.catch_up = self._catch_up
        self.boundary = Boundary()
        self.sampler = LineSampler(get_ident(), marks.phase, switch_interval=SWITCH_INTERVAL)
        self.gather_facts: Callable[[Session], RawFacts] = lambda _: RawFacts()
        self._early_facts: RawFacts | None = None  # of the warm-up's end: what a script leaves may be gone at its own
        self.on_batch: Callable[[object, Callable[[], object]], object] | None = None
        self.last_batch: object = None
        self.communication: Communication | None = None
        self._together: Together | None = None  # one rank of several
        self._began = time.monotonic()
        self.quality: Quality | None = None  # watched where two ways to train are compared
        self.own_samples: OwnSamples | None = None
        self.profiler_seen = False
        self.launcher: int | None = None  # hasten's own process
        self.leave: Callable[[], object] = lambda: leave(self.launcher)  # once the window is full
        self._device = DeviceWatch(marks)
        self.closing = False
        self.trouble: str | None = None  # what ended measuring
        self.outside_sandbox = False  # a service has started this process, where no overlay covers what it sees
        self.redirected_late = False  # file writes were real until torch was imported
        self.not_applied: dict[str, str] = {}  # of each condition that could not be turned on, why
        self.num_operators: int | None = None
        self.num_calls: int | None = None
        self.num_flops: int | None = None
        self.drained: list[float] | None = None
        self.drain_trouble = ""
        self._before: tuple[float | None, int | None] = None, None  # run delay, memory requests: both only ever grow
        self._status = StatusFile(folder, history, self.boundary)

    # ------------------------------------------------------------------------------------------- the hooks

    @_standing_aside
    def loader_starts(self, loader: DataLoader[object], iterator: object, start: float) -> None:
        """`iter(loader)` has returned."""
        if self.loaders.starts(loader, iterator) and self.scheduler.first_step_at is not None:
            self.models.discover()  # a loader never seen before may feed a model never seen before
        self.scheduler.loader_starts()
        self.marks.add("iter", start, self.loaders.number(iterator))
        self.marks.remember_place("data_wait", 2)
        self._status.reach("loading")

    @_standing_aside
    def loader_ends(self, iterator: object, start: float) -> None:
        """An iterator's workers have been ended; it may be long after its last batch."""
        number = self.loaders.known(iterator)
        if number is not None and self.marks.here() and not self.closing:
            self.marks.add("end", start, number)

    @_standing_aside
    def indices_drawn(self, iterator: object, indices: object, seconds: float, *, starting: bool) -> None:
        """A sampler has given a batch's indices."""
        self.loaders.drew(iterator, indices, seconds, starting=starting)

    def next_batch(self, iterator: object, fetch: Callable[[], object]) -> object:
        """Fetch a batch, timed."""
        marks, loaders = self.marks, self.loaders
        try:
            number, ready = loaders.asked(iterator)
        except Exception as error:
            self._stand_aside(error)
            return fetch()
        timed = marks.full
        if timed:
            workers.serve(number, timed=True)
        marks.open.append("data_wait")
        start = marks.now()
        length = None  # the loader has no more, or raises
        try:
            batch = fetch() if self.on_batch is None else self.on_batch(iterator, fetch)
            length = self._length_of(number, iterator, batch)
        finally:
            marks.open.pop()
            if timed:
                workers.serve(None, timed=False)
            marks.add("next", start, Fetched(number, length, ready))
        return batch

    @_standing_aside
    def _length_of(self, number: int, iterator: object, batch: object) -> int:
        self.last_batch = batch
        if self.quality is not None and not torch.is_grad_enabled():
            self.quality.held_out_batch(batch)
        elif self.quality is not None:
            self.quality.batch(batch)
            if self.own_samples is not None:
                self.own_samples.batch(iterator, batch)
        return self.loaders.length_of(number, batch)

    def _stand_aside(self, error: Exception) -> None:
        self.marks.full = False
        self.trouble = repr(error)
        warn(f"measurement disabled after an internal error ({error!r})")

    def backward_ends(self) -> None:
        """An outermost backward has ended."""
        try:
            self.marks.between = BETWEEN
            if self.communication is not None:
                self.communication.backward_ends(self.marks.now())
            if self.boundary.backward():
                self.marks.add("step", self.marks.now())
                self._step_ends(self.marks.now())
        except Exception as error:
            self._give_up(error)

    def optimizer_steps(self, optimizer: Optimizer) -> None:
        """An optimizer step has ended."""
        try:
            if self.boundary.step(optimizer) and "optimizer" not in self.marks.open:
                self._step_ends(self.marks.now())
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        # Without steps the window would never fill, and the parent would wait for ever.
        self._stand_aside(error)
        self.finish("hasten")

    def optimizer_made(self) -> None:
        """An optimizer object exists, whether or not it will step."""
        self.boundary.optimizers_made = True

    def gradients_cleared(self) -> None:
        """`zero_grad` is called."""
        self.boundary.clear()

    # --------------------------------------------------------------------------------------------- the steps

    def _step_ends(self, now: float) -> None:
        self.marks.between = BETWEEN
        if self.marks.device is not None:
            self.marks.device.poll()
        self._device.step()
        if self.communication is not None:
            self.communication.step_ends()
        first = self.scheduler.first_step_at is None
        over = self.scheduler.step(now)
        if first:
            self._first_step_ended()
        if over:
            self._turn(self.scheduler.segments[-1].ends[-1])  # when the device was done
        if self._status.due(now):
            self._status.write()

    def _catch_up(self, now: float) -> float:
        """Wait for the device's pending work, which belongs to this segment, and return the time.

        Only at a segment's ends. A host may be a thousand operators ahead, a tenth of a second and more.
        """
        if not accelerator.is_in_use() or cuda.is_capturing():
            return now
        accelerator.wait()
        if self.marks.full:
            self.marks.add("sync", now, Sync(-1, "waiting for the GPU"))
        return self.marks.now()

    def _first_step_ended(self) -> None:
        self._status.reach("warming up")
        if self.communication is not None and self.communication.group is not None:
            self._together = Together(self.folder)
            self._together.share(self.communication.group.rank)
            self.scheduler.agree = self._agree
        if self.boundary.by_backward:
            self.models.settle()
        # Marked, for a short script ends within its warm-up, and that is all there will be of it.
        self._mark(full=True)

    def _turn(self, now: float) -> None:
        """End this segment and begin the program's next one."""
        scheduler = self.scheduler
        if scheduler.segment is None:
            self._before = run_delay(), cuda.memory_requests()
            self.loaders.begin()
        agreed = self._together.take() if self._together is not None else None
        scheduler.end(agreed or self._ended(now))
        segment = scheduler.upcoming() if scheduler.history.num_spans < MOST_SPANS else None
        if segment is None:
            self.finish("hasten")
            return
        self.profiler_seen = self.profiler_seen or bool(torch.autograd._profiler_enabled())  # pyright: ignore
        self._device.turn(full=segment.full)
        if self._early_facts is None:
            with contextlib.suppress(Exception):  # they are gathered again at the end, where it is said
                self._early_facts = self.gather_facts(self)
        segment.enter()
        self.marks.by_optimizer = self.boundary.key is not None
        self._mark(full=segment.full)
        scheduler.begin(segment, self.marks.now())
        self._status.reach("measuring")

    def _ended(self, now: float) -> History:
        """The history as it is once the segment has ended now."""
        history = self.scheduler.ended(now)
        history.epoch_left, history.epochs_seen = self.loaders.epoch_left(history.step_seconds)
        history.queued = self.loaders.queue_length()
        history.num_spans = len(self.marks.spans)
        history.age = time.monotonic() - self._began
        return history

    def _agree(self, full: bool) -> bool:
        """Whether the segments of all ranks end with this step."""
        assert self._together is not None
        return self._together.ends(full, self.scheduler.num_steps + 1, lambda: self._ended(self.marks.now()))

    def _mark(self, *, full: bool) -> None:
        """Mark every phase from now on, or only what uninstrumented segments need."""
        self.marks.full = full
        self.sampler.running(full)

    # ------------------------------------------------------------------------------------------------ the end

    def finish(self, ended_by: EndedBy) -> None:
        """Write the raw record; then leave at once, unless the script is ending by itself."""
        if self.closing:
            return
        self.closing = True
        self.marks.full = False
        self._device.off()
        self.sampler.running(False)
        self.sampler.end()
        raw = self.raw(ended_by)
        try:
            if self.quality is not None:
                raw.quality = self.quality.raw()
                if self.own_samples is not None:
                    self.own_samples.add_to(raw.quality)
            raw.facts = self.gather_facts(self)
            if not raw.facts.models and self._early_facts is not None:
                raw.facts = self._early_facts
        except Exception as error:
            raw.facts_trouble = repr(error)
        raw.seconds_per_mark = seconds_per_mark()
        try:
            write(raw, self.folder)
        except Exception as error:
            warn(f"the record cannot be written ({error!r})")
        if self._together is not None and ended_by == "hasten":
            self._together.hand_over(raw)
        self._status.reach("done", ended_by=ended_by)
        if ended_by == "hasten":
            self.leave()

    def end_with_script(self) -> None:
        """The process is ending by itself: keep what was seen, if it trained."""
        if self.scheduler.num_steps or self.boundary.num_backwards:
            self.finish("script")

    def forked(self) -> None:
        """This is a forked child now: it starts over, and is recognized by its own steps."""
        self.marks.spans.clear()
        self.marks.open.clear()
        self.marks.thread = self.models.thread = get_ident()
        self.marks.full = False
        self.marks.device = None  # its events are the parent's
        self.sampler = LineSampler(get_ident(), self.marks.phase, switch_interval=SWITCH_INTERVAL)
        self.closing = False
        self.scheduler.forked()
        self.boundary.forked()
        self._status.forked()

    def raw(self, ended_by: EndedBy) -> RawRun:
        """All that this process has seen, but for what is gathered at its end."""
        marks, scheduler = self.marks, self.scheduler
        group = None if self.communication is None else self.communication.raw()
        return RawRun(
            pid=os.getpid(),
            rank=int(os.environ.get("RANK", "0") or 0) if group is None else group.rank,
            ended_by=ended_by,
            boundary="backward" if self.boundary.by_backward else "optimizer",
            started_at=None if scheduler.started_at is None else scheduler.started_at - scheduler.held,
            first_step_at=scheduler.first_step_at,
            segments=scheduler.segments,
            spans=[Span(*span) for span in marks.spans],
            device_spans=marks.device.spans if marks.device is not None else [],
            places=[*marks.places],
            first_place=marks.first_place,
            lines=self.sampler.lines(),
            loaders=self.loaders.raw(),
            not_applied=self.not_applied,
            num_operators=self.num_operators,
            num_calls=self.num_calls,
            num_flops=self.num_flops,
            run_delay=_grown(self._before[0], run_delay()),
            memory_requests=_grown(self._before[1], cuda.memory_requests()),
            drained=self.drained,
            drain_trouble=self.drain_trouble,
            trouble=self.trouble,
            redirected_late=self.redirected_late,
            outside_sandbox=self.outside_sandbox,
            group=group,
        )


def _grown(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before
