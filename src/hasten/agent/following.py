"""A run under a plan: its optimizations, its pace in one line at the end, and whether losses and batches are as in the proof."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import multiprocessing
import os
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from threading import get_ident
from time import perf_counter

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from hasten.agent.handle import enable_all
from hasten.agent.models import Models
from hasten.agent.quality import mean_of
from hasten.agent.status import let_threads_end
from hasten.agent.steps import Boundary
from hasten.agent.tree import num_samples, tensors_in
from hasten.devices import accelerator
from hasten.patches import Patches, warn
from hasten.protocol import Following, LaunchSpec, PlannedRun, SeenInProof, to_json


def follow(spec: LaunchSpec) -> Patches:
    """Apply the plan, count steps, and look at losses and batches."""
    patches, following = Patches(), spec.following
    assert following is not None
    atexit.register(let_threads_end)
    said: set[str] = set()

    def report(name: str, reason: str) -> None:
        if name not in said and multiprocessing.parent_process() is None:
            said.add(name)
            sys.stderr.write(f"hasten: {name} is not applied: {reason}\n")

    try:
        enable_all(spec.fixes, Models(patches), patches, report=report)
        Pace(patches, following)
        if following.proof is not None:
            Seen(patches, following.proof)
    except BaseException:
        patches.undo()
        raise
    return patches


Function = Callable[..., object]
WARM_STEPS = 5
MOST_STEPS = 1 << 17  # whose times are kept; later ones take the place of earlier ones
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # what others may have put in the file's place
STRETCH_SECONDS = 1.0  # on a device: more than the host may be ahead by
REGULAR = 3.0  # times the median: a longer step holds a validation, an epoch's start or a checkpoint


class Pace:
    """The steps of this process."""

    def __init__(self, patches: Patches, following: Following) -> None:
        self._following = following
        self.num_steps = 0
        self._seconds = array("d")
        self._samples = array("q")
        self._last = 0.0
        self._taken = 0
        self._boundary = Boundary()
        self._rank = 0
        self._thread = get_ident()
        self._process = os.getpid()
        patches.wrap(_BaseDataLoaderIter, "__next__", self._counting)
        patches.on_undo(register_optimizer_step_post_hook(self._stepped).remove)
        atexit.register(self._say)

    def _counting(self, original: Function) -> Function:
        @functools.wraps(original)
        def __next__(self_: object) -> object:
            batch = original(self_)
            if torch.is_grad_enabled() and get_ident() == self._thread:
                self._taken += num_samples(batch) or 0
            return batch

        return __next__

    def _stepped(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        now = perf_counter()
        if not self._boundary.step(optimizer):
            return
        if not self.num_steps:
            self._rank = _rank()
        self.num_steps += 1
        if self.num_steps > WARM_STEPS:
            if len(self._seconds) < MOST_STEPS:
                self._seconds.append(now - self._last)
                self._samples.append(self._taken)
            else:
                at = self.num_steps % MOST_STEPS
                self._seconds[at], self._samples[at] = now - self._last, self._taken
        self._last, self._taken = now, 0

    def rate(self) -> float | None:
        """Samples a second in regular steps; None where no step was seen, or no batch."""
        if len(self._seconds) < 3 or not sum(self._samples):
            return None
        steps = list(zip(self._seconds, self._samples))
        if accelerator.is_in_use():  # the host asks for many steps and then waits for all: single steps say nothing
            steps = _stretches(steps)
        limit = REGULAR * statistics.median(s for s, _ in steps)
        regular = [(s, n) for s, n in steps if s <= limit]
        return sum(n for _, n in regular) / sum(s for s, _ in regular)

    def line(self) -> str | None:
        """What to say at the end."""
        if self.rate() is None:
            return None
        # All that the script waited for counts, so that its own clock shows the same. No ratio to the baseline: that was
        # measured at another time, and what else the machine did then is not known.
        seconds = sum(self._seconds)
        rate = sum(self._samples) / seconds
        shown = f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"
        return f"{self.num_steps} steps, {shown} samples/s"

    def _say(self) -> None:
        # Ranks of one run would all say the same; loader workers have no steps.
        if os.getpid() == self._process and self._rank == 0:
            line = self.line()
            if line is not None:
                sys.stderr.write(f"hasten: {line}\n")
                self._write()

    def _write(self) -> None:
        """One line more in the file, written at once: runs that end together do not mix theirs."""
        if self._following.log is None:
            return
        run = PlannedRun(
            script=self._following.script,
            settings=self._following.settings,
            ended=time.time(),
            num_steps=self.num_steps,
            samples_per_second=self.rate(),
        )
        with contextlib.suppress(OSError):  # the run is over and went well: nobody misses a line of ours
            file = os.open(self._following.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK, 0o644)
            try:
                os.write(file, b"\n" + to_json(run).encode() + b"\n")  # behind a torn line too
            finally:
                os.close(file)


def _rank() -> int:
    """Of this process among those that train together."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0") or 0)


def _stretches(steps: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Seconds and samples of steps that follow each other, a second and more together."""
    found: list[tuple[float, int]] = []
    seconds, samples = 0.0, 0
    for taken, number in steps:
        seconds, samples = seconds + taken, samples + number
        if seconds >= STRETCH_SECONDS:
            found.append((seconds, samples))
            seconds, samples = 0.0, 0
    return found or [(seconds, samples)]


EVERY = 500  # backwards, of which one's loss is looked at; and batches
TIMES, SHARE = 4.0, 0.02  # of the spread, and of the loss: what is further above is another course
FAR = 10.0  # times the spread of batches: what is further off is another kind of batch
PROOF = "`hasten tune` proves the plan again"


class Seen:
    """The losses and batches of this process, held against those of the proof."""

    def __init__(self, patches: Patches, proof: SeenInProof) -> None:
        self._proof = proof
        self._steps = 0 if proof.loss is None else proof.loss_steps or 0
        self._num_losses = self._num_batches = 0
        self._first: list[torch.Tensor] = []
        self._last: tuple[int, torch.Tensor] | None = None  # that was looked at, and is read the next time
        self._depth = 0
        patches.wrap(torch.autograd, "backward", self._following)
        if proof.batch_mean is not None:
            patches.wrap(_BaseDataLoaderIter, "__next__", self._handing_out)

    def _following(self, original: Function) -> Function:
        @functools.wraps(original)
        def backward(tensors: object, *arguments: object, **settings: object) -> object:
            if not self._depth:
                self._look(tensors)
            self._depth += 1
            try:
                return original(tensors, *arguments, **settings)
            finally:
                self._depth -= 1

        return backward

    def _look(self, tensors: object) -> None:
        self._num_losses += 1
        in_the_end = 2 * self._steps // 3 < self._num_losses <= self._steps
        if not in_the_end and self._num_losses % EVERY:
            return
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        if in_the_end:
            self._first.append(loss.detach().clone())
            if self._num_losses == self._steps:
                self._compare()
        else:
            if self._last is not None and not math.isfinite(float(self._last[1])):
                warn(f"the loss of step {self._last[0]} is not a number; in the plan's proof it was one")
            self._last = self._num_losses, loss.detach().clone()

    def _compare(self) -> None:
        now, self._first = statistics.fmean(map(float, self._first)), []
        before = self._proof.loss
        assert before is not None
        most = before + max(TIMES * (self._proof.loss_spread or 0.0), SHARE * abs(before))
        if not now <= most:
            warn(
                f"the loss is {now:.4g} at step {self._steps}, where the plan's proof saw {before:.4g} and at most "
                f"{most:.4g}: this run may not train as it was proven to; {PROOF}"
            )

    def _handing_out(self, original: Function) -> Function:
        @functools.wraps(original)
        def __next__(iterator: object) -> object:
            batch = original(iterator)
            if torch.is_grad_enabled():
                self._num_batches += 1
                if self._num_batches % EVERY == 0:
                    self._look_at(batch)
            return batch

        return __next__

    def _look_at(self, batch: object) -> None:
        mean, before = mean_of(tensors_in(batch)), self._proof.batch_mean
        assert before is not None
        most = FAR * (self._proof.batch_spread or 0.0) + SHARE * abs(before)
        if mean is not None and not abs(mean - before) <= most:
            warn(
                f"the values of batch {self._num_batches} have a mean of {mean:.4g}, where the plan's proof saw "
                f"{before:.4g} within {most:.2g}: the run may not see the data that it was proven on; {PROOF}"
            )
