"""Mark the phases of a training step by patching torch; every patch can be undone.

A `Listener` is notified of batches, backwards and optimizer steps, and decides what a step is. Each wrapper costs under a
microsecond when it has nothing to mark, because uninstrumented segments run through it too; those that run in every step
compare thread ids themselves instead of calling `marks.here()`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Protocol

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
    _MultiProcessingDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from hasten.agent.marks import Marks, spanned
from hasten.agent.tree import tensors_in
from hasten.devices import accelerator
from hasten.patches import Patches
from hasten.raw_run import AUTOCAST, GRAD, OUTPUT_GRAD, TRAINING, Forward, ZeroGrad

Function = Callable[..., object]
MOST_SHAPES = 1000
_DEVICES = {"cpu", accelerator.built_for() or "cpu"}


class Forwards:
    """Marks the forwards of root modules; a Watcher of `models`."""

    def __init__(self, marks: Marks) -> None:
        self.shapes: set[tuple[int, ...]] = set()  # of the roots' inputs
        self._marks = marks

    def waits(self) -> bool:
        """Whether a batch is waited for: with no workers, transforms that are modules run in this process."""
        return "data_wait" in self._marks.open

    def enter(self, module: nn.Module) -> float | None:
        """Open a span. Forwards of a validation are marked in uninstrumented segments too: they are few."""
        if self._marks.full or not module.training or not torch.is_grad_enabled():
            return self._marks.enter("forward")
        return None

    def leave(self, module: nn.Module, start: float, arguments: tuple[object, ...], output: object) -> None:
        """Close the span."""
        marks = self._marks
        inputs = next(tensors_in(arguments, most=1), None)
        shape = tuple(inputs.shape) if inputs is not None else ()
        flags = TRAINING * module.training + GRAD * torch.is_grad_enabled()
        flags += AUTOCAST * any(map(accelerator.in_mixed_precision, _DEVICES))
        if not flags & TRAINING:
            flags += OUTPUT_GRAD * any(tensor.requires_grad for tensor in tensors_in(output, most=4))
        if len(self.shapes) < MOST_SHAPES:
            self.shapes.add(shape)
        marks.between = "loss" if flags & TRAINING and flags & GRAD else "validation"
        marks.leave("forward", start, Forward(id(module), flags, shape[0] if shape else None))
        marks.remember_place("forward" if flags & TRAINING else "validation", 1)


class Listener(Protocol):
    """Is notified of what the hooks see."""

    marks: Marks

    def loader_starts(self, loader: DataLoader[object], iterator: object, start: float) -> None:
        """`iter(loader)` has returned."""

    def loader_ends(self, iterator: object, start: float) -> None:
        """An iterator's workers have been ended."""

    def indices_drawn(self, iterator: object, indices: object, seconds: float, *, starting: bool) -> None:
        """A sampler has given a batch's indices; `starting`: within `iter(loader)`."""

    def next_batch(self, iterator: object, fetch: Function) -> object:
        """Fetch a batch by `fetch()` and hand it over."""
        ...

    def backward_ends(self) -> None:
        """An outermost backward has ended."""

    def optimizer_steps(self, optimizer: Optimizer) -> None:
        """An optimizer step has ended."""

    def optimizer_made(self) -> None:
        """An optimizer object exists, whether or not it will step."""

    def gradients_cleared(self) -> None:
        """`zero_grad` is called."""


def install(listener: Listener, patches: Patches) -> None:
    """Put every hook on."""
    _hook_loader(listener, patches)
    _hook_backward(listener, patches)
    _hook_optimizer(listener, patches)


def _hook_loader(listener: Listener, patches: Patches) -> None:
    marks = listener.marks
    starting: list[object] = []

    def make_iter(original: Function) -> Function:
        @functools.wraps(original)
        def __iter__(self: DataLoader[object]) -> object:
            if starting or not marks.here():  # a loader that is another's beginning
                return original(self)
            starting.append(self)
            start = marks.now()
            try:
                iterator = original(self)
            finally:
                starting.pop()
            listener.loader_starts(self, iterator, start)
            return iterator

        return __iter__

    def make_next(original: Function) -> Function:
        @functools.wraps(original)
        def __next__(self: object) -> object:
            # fastai and some samplers iterate one loader inside another: only the outermost is waited for.
            if get_ident() != marks.thread or "data_wait" in marks.open:
                return original(self)
            return listener.next_batch(self, functools.partial(original, self))

        return __next__

    def make_next_index(original: Function) -> Function:
        @functools.wraps(original)
        def _next_index(self: object) -> object:
            if get_ident() != marks.thread:
                return original(self)
            start, indices = marks.now(), None
            try:
                indices = original(self)
                return indices
            finally:
                listener.indices_drawn(self, indices, marks.now() - start, starting=bool(starting))

        return _next_index

    def make_shutdown(original: Function) -> Function:
        @functools.wraps(original)
        def _shutdown_workers(self: object) -> object:
            # The end of an epoch waits for the workers to end: a cost of not keeping them.
            start = marks.now()
            try:
                return original(self)
            finally:
                listener.loader_ends(self, start)

        return _shutdown_workers

    patches.wrap(DataLoader, "__iter__", make_iter)
    patches.wrap(_MultiProcessingDataLoaderIter, "_shutdown_workers", make_shutdown)
    # The iterator keeps its type: frameworks look into it.
    patches.wrap(_BaseDataLoaderIter, "__next__", make_next)
    patches.wrap(_BaseDataLoaderIter, "_next_index", make_next_index)


def _hook_backward(listener: Listener, patches: Patches) -> None:
    # Tensor.backward calls autograd.backward, below a torch function mode from within the mode's own call, where it cannot
    # be left: the outermost of both counts. A checkpointed forward runs a backward within the backward.
    marks = listener.marks
    active: list[bool] = []

    def guarded(original: Function) -> Function:
        @functools.wraps(original)
        def call(*arguments: object, **settings: object) -> object:
            if active or (marks.by_optimizer and not marks.full) or get_ident() != marks.thread:
                return original(*arguments, **settings)
            active.append(True)
            start = None
            if marks.full:
                marks.remember_place("backward", 1)
                start = marks.enter("backward")
            try:
                result = original(*arguments, **settings)
            finally:
                active.pop()
                if start is not None:
                    marks.leave("backward", start)
            listener.backward_ends()
            return result

        return call

    patches.wrap(torch.Tensor, "backward", guarded)
    patches.wrap(torch.autograd, "backward", guarded)
    patches.wrap(torch.autograd, "grad", guarded)


def _is_within(frame: FrameType | None, outer: FrameType) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None


def _hook_optimizer(listener: Listener, patches: Patches) -> None:
    marks = listener.marks
    # Steps that have begun: the frame that called, the optimizer, when; no time for a step within its own step.
    begun: list[tuple[FrameType, int, float | None]] = []

    def before(optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        if get_ident() != marks.thread:
            return
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        # A step that raised is announced at its beginning only; the script may continue after it.
        while begun and not _is_within(caller, begun[-1][0]):
            if begun.pop()[2] is not None and "optimizer" in marks.open:
                del marks.open[marks.open.index("optimizer") :]
        # A subclass that calls super().step() is announced twice.
        again = bool(begun) and any(known == id(optimizer) for _, known, _ in begun)
        begun.append((caller, id(optimizer), None if again else marks.enter("optimizer")))

    def after(optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        if not begun or get_ident() != marks.thread:
            return
        start = begun.pop()[2]
        if start is not None and marks.open:
            if "optimizer" not in marks.first_place:
                marks.remember_place("optimizer", 2)
            marks.leave("optimizer", start, id(optimizer))
            listener.optimizer_steps(optimizer)

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        patches.wrap(torch.nn.utils, name, lambda function: spanned(marks, "optimizer", function))
    patches.on_undo(register_optimizer_step_pre_hook(before).remove)
    patches.on_undo(register_optimizer_step_post_hook(after).remove)

    def make_init(original: Function) -> Function:
        @functools.wraps(original)
        def __init__(self: object, *arguments: object, **settings: object) -> None:
            listener.optimizer_made()
            original(self, *arguments, **settings)

        return __init__

    patches.wrap(Optimizer, "__init__", make_init)

    def make_zero_grad(original: Function) -> Function:
        @functools.wraps(original)
        def zero_grad(self: object, set_to_none: bool = True) -> object:
            listener.gradients_cleared()
            if not marks.full or not marks.here() or "zero_grad" in marks.open:
                return original(self, set_to_none)
            place = marks.place(1)
            start = marks.enter("zero_grad")
            try:
                return original(self, set_to_none)
            finally:
                marks.leave("zero_grad", start, ZeroGrad(place, bool(set_to_none)))

        return zero_grad

    patches.wrap(Optimizer, "zero_grad", make_zero_grad)
    patches.wrap(torch.nn.Module, "zero_grad", make_zero_grad)
