"""Other training dynamics: a larger batch with its learning rate, another optimizer, a schedule.

In: a site and a value. Out: the script trains by another recipe. Never put on unless the user asked for recipes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import SequentialSampler

from hasten.agent.handle import Handle, NotApplicableError
from hasten.fixes.inside.loaders import Given, change_loaders
from hasten.protocol import Value

WARM_UP_STEPS = 100  # over which a raised learning rate is reached (Goyal and others, 2017, take five epochs)
ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad")


def batch_size(handle: Handle, value: Value) -> None:
    """Training batches of so many samples; learning rates grow linearly with SGD, by the square root with Adam's kin."""
    wanted = int(value)
    before: list[int] = []

    def change(given: Given) -> None:
        size = given.get("batch_size", 1)
        trains = given.get("shuffle") or not isinstance(given.get("sampler"), (SequentialSampler, type(None)))
        if trains and given.get("batch_sampler") is None and isinstance(size, int):
            before.append(size)
            given["batch_size"] = wanted

    def scale(optimizer: Optimizer) -> None:
        if not before:
            raise NotApplicableError("no shuffled DataLoader with a batch size was made")
        _raise_rates(handle, optimizer, wanted / before[0])

    change_loaders(handle, change)
    handle.on_optimizer(scale)


def _raise_rates(handle: Handle, optimizer: Optimizer, ratio: float) -> None:
    """Linear for SGD (Goyal and others, 2017), square root for adaptive ones (Malladi and others, 2022); warmed up."""
    factor = ratio**0.5 if type(optimizer).__name__ in ADAPTIVE else ratio
    done = 0

    def warm_up(stepped: Optimizer, _arguments: object, _settings: object) -> None:
        nonlocal done
        if stepped is not optimizer or done >= WARM_UP_STEPS:
            return
        done += 1
        # Multiplied, not set: a schedule of the script's own goes on meanwhile.
        step_factor = factor ** (1 / WARM_UP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] *= step_factor
            if "initial_lr" in group:
                group["initial_lr"] *= step_factor

    handle.patches.on_undo(register_optimizer_step_post_hook(warm_up).remove)


def adamw(handle: Handle, value: Value) -> None:
    """Optimizers that the script makes as SGD or Adam become AdamW (Loshchilov and Hutter, 2019) at this learning rate."""
    for kind in (torch.optim.SGD, torch.optim.Adam):
        handle.patches.set(kind, "__init__", _becoming(kind, AdamW, float(value)))


def _becoming(kind: type[Optimizer], other: type[Optimizer], rate: float) -> Callable[..., None]:
    """A constructor of `kind` that makes one of `other`: the script's object is that from its first moment."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Optimizer, *arguments: Any, **settings: Any) -> None:
        if type(self) is not kind:
            return original(self, *arguments, **settings)
        given = inspect.signature(original).bind(self, *arguments, **settings)
        given.apply_defaults()
        params, before, decay = (given.arguments[name] for name in ("params", "lr", "weight_decay"))
        groups = [*params]
        if groups and isinstance(groups[0], dict):  # rates of groups keep their ratio to the script's own
            groups = [
                {**group, "lr": rate * float(group["lr"]) / float(before)} if "lr" in group else group
                for group in groups
            ]
        self.__class__ = other
        other.__init__(self, groups, lr=rate, **({"weight_decay": decay} if decay else {}))  # type: ignore[call-arg]
        return None

    return __init__


def onecycle(handle: Handle, value: Value) -> None:
    """The learning rate rises to the script's and falls to nothing within so many steps (Smith and Topin, 2018)."""
    _schedule(
        handle,
        lambda optimizer, rates: OneCycleLR(
            optimizer,
            rates,
            total_steps=int(value),
            cycle_momentum=_has_momentum(optimizer),
        ),
    )


def cyclic(handle: Handle, value: Value) -> None:
    """The learning rate swings between a tenth of the script's and the script's, so many steps each way (Smith, 2017)."""
    _schedule(
        handle,
        lambda optimizer, rates: CyclicLR(
            optimizer,
            [rate / 10 for rate in rates],
            rates,
            step_size_up=int(value),
            cycle_momentum=bool(optimizer.defaults.get("momentum")),
        ),
    )


def _has_momentum(optimizer: Optimizer) -> bool:
    """Whether there is one to swing against the rate: a schedule gives none to SGD that has none."""
    return bool(optimizer.defaults.get("momentum")) or "betas" in optimizer.defaults


def _schedule(handle: Handle, make: Callable[[Optimizer, list[float]], LRScheduler]) -> None:
    schedules: dict[int, LRScheduler] = {}

    def start(optimizer: Optimizer) -> None:
        if any("initial_lr" in group for group in optimizer.param_groups):
            raise NotApplicableError("the script has a schedule of its own")
        schedules[id(optimizer)] = make(optimizer, [float(group["lr"]) for group in optimizer.param_groups])
        # The schedule is made within the optimizer's first step, and would warn that it goes before it.
        optimizer._opt_called = True  # type: ignore[attr-defined]

    def advance(optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        schedule = schedules.get(id(optimizer))
        # Beyond its last step OneCycleLR's rate would rise again: it stays where it ended.
        if schedule is not None and schedule.last_epoch + 1 < getattr(schedule, "total_steps", float("inf")):
            schedule.step()

    handle.on_optimizer(start)
    handle.patches.on_undo(register_optimizer_step_post_hook(advance).remove)
