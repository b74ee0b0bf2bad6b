"""A model whose batch cannot be cut: its blocks keep their inputs alone, and are computed again for their backward.

In: a model. Out: its forward with less held for backward, exact also for statistics over the batch, for every block sees
the whole batch. Blocks are the elements of lists that have layers of their own; of a plain row of layers, each layer with
weights together with what follows it. Refuses models without either: there is nothing between all and nothing.

Chen and others, Training Deep Nets with Sublinear Memory Cost (2016), by torch's own checkpointing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils.checkpoint import checkpoint

from hasten.agent.patches import Patches

Function = Callable[..., object]


class Stretch(nn.ModuleList):
    """Some layers of a row, as one block."""

    def forward(self, input: Any) -> Any:
        """Through one after the other."""
        for layer in self:
            input = layer(input)
        return input


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The model's parts that stand one after another; none where there are not several."""
    found = _listed(model)
    if len(found) < 2:
        found = _stretches(model)
    return found if len(found) > 1 else []


def _listed(model: nn.Module) -> list[nn.Module]:
    """Elements of the innermost lists that have layers of their own."""
    found: list[nn.Module] = []
    for child in model.children():
        if _has_blocks(child):
            found += _listed(child)
        elif _is_block(child):
            found.append(child)
    return found


def _stretches(model: nn.Module) -> list[nn.Module]:
    """Of plain rows: from one layer with weights, which leaves its input as it is, to the next."""
    found: list[nn.Module] = []
    for row in model.modules():
        if isinstance(row, nn.Sequential) and _forward_of(type(row)) is _forward_of(nn.Sequential):
            layers = list(row)
            starts = [at for at, layer in enumerate(layers) if _has_weights(layer)]
            found += [Stretch(layers[start:end]) for start, end in zip(starts, [*starts[1:], len(layers)])]
    return found


def _has_weights(layer: nn.Module) -> bool:
    return not any(True for _ in layer.children()) and any(p.dim() > 1 for p in layer.parameters())


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(p.requires_grad for p in module.parameters())


def _has_blocks(module: nn.Module) -> bool:
    """Whether a list of blocks is in it: of several layers side by side, each with layers of its own."""
    return any(sum(map(_is_block, inner.children())) > 1 for inner in module.modules())


@contextlib.contextmanager
def recomputing(blocks: list[nn.Module]) -> Generator[None]:
    """Within it a call of one of the blocks holds its input alone."""
    known = {id(block) for block in blocks}
    stretches = {id(block[0]): block for block in blocks if isinstance(block, Stretch)}
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
    if stretches:
        patches.wrap(nn.Sequential, "__iter__", functools.partial(_in_stretches, stretches))
    try:
        yield
    finally:
        patches.undo()


def _in_stretches(stretches: dict[int, Stretch], original: Function) -> Function:
    """A row's own forward, and nobody else who goes through its layers, is given stretches in their stead."""
    own = _forward_of(nn.Sequential).__code__

    @functools.wraps(original)
    def __iter__(row: nn.Sequential) -> Iterator[nn.Module]:
        if sys._getframe(1).f_code is not own:  # pyright: ignore[reportPrivateUsage]
            return original(row)  # type: ignore[return-value]
        found: list[nn.Module] = []
        layers: list[nn.Module] = [*original(row)]  # type: ignore[misc]
        while layers:
            stretch = stretches.get(id(layers[0]))
            # A slice of a row may end within one, and a layer may stand in two places.
            if stretch is None or [*map(id, stretch)] != [*map(id, layers[: len(stretch)])]:
                found.append(layers.pop(0))
            else:
                found.append(stretch)
                del layers[: len(stretch)]
        return iter(found)

    return __iter__


def _forward_of(kind: type[nn.Module]) -> Any:
    """As it was written: a fix may have put its own in its place."""
    return inspect.unwrap(kind.forward)


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
