"""Another optimizer, and schedules of the learning rate: recipes that make no step faster, and may need fewer of them.

They are tried in whole runs, by how soon the script's metric reaches its target.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hasten.errors import NotApplicableError
from hasten.optimizations.optimization import Optimization
from hasten.protocol import Value

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler
    from torch.optim.optimizer import Optimizer

    from hasten.agent.handle import Handle
    from hasten.records import Settings

FEWEST_STEPS = 10  # of a schedule
RATES = (0.001, 0.003, 0.01)  # of AdamW; its authors' is the first, and a schedule that ends low bears more
IN_WHOLE_RUNS = ("adamw", "onecycle", "cyclic")
NO_FASTER_STEP = "it makes no step faster; with --target it is tried in whole runs"


def combinations(num_steps: float | None) -> list[Settings]:
    """Recipes worth a whole run each, from the likeliest on; a schedule needs the number of steps that training takes."""
    found: list[Settings] = []
    if num_steps is not None and num_steps >= FEWEST_STEPS:
        total = round(num_steps)
        for rate in RATES[1:]:
            found.append({"adamw": rate, "onecycle": total})
        found.append({"onecycle": total})
        found.append({"adamw": RATES[1], "cyclic": max(2, total // 8)})
    found.append({"adamw": RATES[0]})
    return found


def enable_adamw(handle: Handle, value: Value) -> None:
    """Optimizers that the script makes as SGD or Adam become AdamW (Loshchilov and Hutter, 2019) at this learning rate."""
    import torch
    from torch.optim import AdamW

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


def enable_onecycle(handle: Handle, value: Value) -> None:
    """The learning rate rises to the script's and falls to nothing within so many steps (Smith and Topin, 2018)."""
    from torch.optim.lr_scheduler import OneCycleLR

    _schedule(
        handle,
        lambda optimizer, rates: OneCycleLR(
            optimizer,
            rates,
            total_steps=int(value),
            cycle_momentum=_has_momentum(optimizer),
        ),
    )


def enable_cyclic(handle: Handle, value: Value) -> None:
    """The learning rate swings between a tenth of the script's and the script's, so many steps each way (Smith, 2017)."""
    from torch.optim.lr_scheduler import CyclicLR

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
    from torch.optim.optimizer import register_optimizer_step_post_hook

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


ADAMW = Optimization(
    name="adamw",
    title="AdamW at this learning rate in place of SGD or Adam",
    guarantee="recipe",
    answers=(),
    propose=lambda _: NO_FASTER_STEP,
    enable=enable_adamw,
    kind="rate",
)
ONECYCLE = Optimization(
    name="onecycle",
    title="the learning rate rises and falls once within so many steps",
    guarantee="recipe",
    answers=(),
    propose=lambda _: NO_FASTER_STEP,
    enable=enable_onecycle,
    kind="number",
    least=FEWEST_STEPS,
    excludes=("cyclic",),
)
CYCLIC = Optimization(
    name="cyclic",
    title="the learning rate swings up and down, so many steps each way",
    guarantee="recipe",
    answers=(),
    propose=lambda _: NO_FASTER_STEP,
    enable=enable_cyclic,
    kind="number",
    excludes=("onecycle",),
)
