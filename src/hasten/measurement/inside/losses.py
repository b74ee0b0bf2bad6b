"""Whether a run under a plan trains as the plan's proof saw it train.

In: the losses as backward is called on them, and what the proof saw. Out: a line on standard error where they leave that. Refuses
to make a step wait: a loss is read long after it was computed, and after the first steps only one in many is.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hasten.measurement.inside.patches import Patches, warn

Function = Callable[..., object]
EVERY = 500  # backwards, of which one's loss is looked at
TIMES, SHARE = 4.0, 0.02  # of the spread, and of the loss: what is further above is another course


class Losses:
    """The losses of this process, held against those of the proof."""

    def __init__(self, patches: Patches, proof: Mapping[str, Any]) -> None:
        self._steps, self._loss, self._spread = int(proof["steps"]), float(proof["loss"]), float(proof["spread"])
        self._seen = 0
        self._first: list[torch.Tensor] = []
        self._last: tuple[int, torch.Tensor] | None = None  # that was looked at, and is read the next time
        self._depth = 0
        patches.wrap(torch.autograd, "backward", self._following)

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
        self._seen += 1
        in_the_end = 2 * self._steps // 3 < self._seen <= self._steps
        if not in_the_end and self._seen % EVERY:
            return
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        if in_the_end:
            self._first.append(loss.detach().clone())
            if self._seen == self._steps:
                self._compare()
        else:
            if self._last is not None and not math.isfinite(float(self._last[1])):
                warn(f"the loss of step {self._last[0]} is not a number; in the plan's proof it was one")
            self._last = self._seen, loss.detach().clone()

    def _compare(self) -> None:
        now, self._first = statistics.fmean(map(float, self._first)), []
        most = self._loss + max(TIMES * self._spread, SHARE * abs(self._loss))
        if not now <= most:
            warn(
                f"the loss is {now:.4g} at step {self._steps}, where the plan's proof saw {self._loss:.4g} and at most "
                f"{most:.4g}: this run may not train as it was proven to; `hasten tune` proves the plan again"
            )
