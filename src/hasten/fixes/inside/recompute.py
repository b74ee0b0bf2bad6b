"""A model whose batch cannot be cut: its blocks keep their inputs alone, and are computed again for their backward.

In: a model. Out: its forward with less held for backward, exact also for statistics over the batch, for every block sees
the whole batch. Refuses models without blocks: there is nothing between all and nothing.

Chen and others, Training Deep Nets with Sublinear Memory Cost (2016), by torch's own checkpointing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils.checkpoint import checkpoint

from hasten.measurement.inside.patches import Patches

Function = Callable[..., object]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The model's parts that stand one after another: elements of its innermost lists that have layers of their own."""
    found: list[nn.Module] = []
    for child in model.children():
        if _has_blocks(child):
            found += blocks_of(child)
        elif _is_block(child):
            found.append(child)
    return found if len(found) > 1 else []


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(p.requires_grad for p in module.parameters())


def _has_blocks(module: nn.Module) -> bool:
    """Whether a list of blocks is in it: of several layers side by side, each with layers of its own."""
    return any(sum(map(_is_block, inner.children())) > 1 for inner in module.modules())


@contextlib.contextmanager
def recomputing(blocks: list[nn.Module]) -> Generator[None]:
    """Within it a call of one of the blocks holds its input alone."""
    known = {id(block) for block in blocks}
    patches = Patches()

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def __call__(module: nn.Module, *arguments: object, **settings: object) -> object:
            if id(module) not in known or not torch.is_grad_enabled():
                return original(module, *arguments, **settings)
            block: Any = functools.partial(original, module)
            return checkpoint(
                block,
                *arguments,
                use_reentrant=False,
                context_fn=lambda: (contextlib.nullcontext(), statistics_kept(module)),
                **settings,
            )

        return __call__

    patches.wrap(nn.Module, "__call__", make)
    try:
        yield
    finally:
        patches.undo()


@contextlib.contextmanager
def statistics_kept(model: nn.Module) -> Generator[None]:
    """Within it the batch's statistics are used and not counted: a forward made again must not count twice."""
    counting = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    before = [(module, module.momentum, _copied(module.num_batches_tracked)) for module in counting]
    for module in counting:
        module.momentum = 0.0
    try:
        yield
    finally:
        for module, momentum, number in before:
            module.momentum = momentum
            if number is not None and module.num_batches_tracked is not None:
                module.num_batches_tracked.copy_(number)


def _copied(number: torch.Tensor | None) -> torch.Tensor | None:
    return None if number is None else number.clone()


class Statistics:
    """The running statistics of a model before its last forward, so that a forward that failed half-way can be undone."""

    def __init__(self, model: nn.Module) -> None:
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        self._buffers = [buffer for m in norms for buffer in m.buffers()]
        self._kept = [buffer.clone() for buffer in self._buffers]

    def keep(self) -> None:
        """Remember what they are now."""
        if self._kept:  # all of them at once: one by one they take a millisecond in a DenseNet
            torch._foreach_copy_(self._kept, self._buffers)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

    def restore(self) -> None:
        """Put them back."""
        with torch.no_grad():
            for kept, buffer in zip(self._kept, self._buffers):
                buffer.copy_(kept)
