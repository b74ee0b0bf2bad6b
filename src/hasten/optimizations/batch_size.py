"""Larger training batches, and the learning rate with them: another training recipe, proven by the user's metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from hasten.errors import NotApplicableError
from hasten.optimizations.optimization import Optimization, Proposal
from hasten.protocol import Value

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation

MOST_GROWTH = 8
WARM_UP_STEPS = 100  # over which a raised learning rate is reached (Goyal and others, 2017, take five epochs)
ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad")


def enable(handle: Handle, value: Value) -> None:
    """Training batches of so many samples; learning rates grow linearly with SGD, by the square root with Adam's kin."""
    from torch.utils.data import SequentialSampler

    from hasten.agent.loader_arguments import change_loaders

    wanted = int(value)
    before: list[int] = []

    def change(given: dict[str, Any]) -> None:
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
    from torch.optim.optimizer import register_optimizer_step_post_hook

    factor = ratio**0.5 if type(optimizer).__name__ in ADAPTIVE else ratio
    held, done = ref(optimizer), 0

    def warm_up(stepped: Optimizer, _arguments: object, _settings: object) -> None:
        nonlocal done
        if stepped is not held() or done >= WARM_UP_STEPS:
            return
        done += 1
        # Multiplied, not set: a schedule of the script's own continues meanwhile.
        step_factor = factor ** (1 / WARM_UP_STEPS)
        for group in stepped.param_groups:
            group["lr"] *= step_factor
            if "initial_lr" in group:
                group["initial_lr"] *= step_factor

    handle.patches.on_undo(register_optimizer_step_post_hook(warm_up).remove)


def _propose(situation: Situation) -> list[Proposal] | str:
    train = situation.case.train
    if train is None or not train.batch_size:
        return "no training loader with a batch size was seen"
    finding = situation.finding("small_batch")
    if finding is None:
        return "a larger batch would not make a sample cheaper"
    size = train.batch_size
    return [
        Proposal(value=factor * size, saves=finding.recoverable * (1 - 1 / factor), because=finding.title)
        for factor in (4, MOST_GROWTH)
    ]


OPTIMIZATION = Optimization(
    name="batch_size",
    title="training batches of so many samples, the learning rate scaled with them",
    guarantee="recipe",
    answers=("small_batch",),
    propose=_propose,
    enable=enable,
    kind="number",
)
