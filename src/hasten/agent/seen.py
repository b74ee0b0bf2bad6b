"""Whether a run under a plan trains as the plan's proof saw it train.

In: losses as backward is called on them, batches as they are handed out, and what the proof saw. Out: a line on standard error
where they leave that. Refuses to make a step wait: a loss is read long after it was computed, and after the first steps only
one in many is, as only one batch in many is.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from hasten.agent.quality import mean_of
from hasten.agent.tree import tensors_in
from hasten.patches import Patches, warn
from hasten.protocol import SeenInProof

Function = Callable[..., object]
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
