"""The model's forward compiled by torch.compile, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hasten.optimizations.optimization import Optimization, Proposal
from hasten.protocol import GRADIENT_PHASES, Value

if TYPE_CHECKING:
    from torch import nn

    from hasten.agent.handle import Handle
    from hasten.agent.root import Forward
    from hasten.diagnosis.situation import Situation


def enable(handle: Handle, value: Value) -> None:
    """Compile the roots' forward: the model and its state keys stay what they are."""
    import torch

    from hasten.agent.tree import with_tensors

    compiled: WeakKeyDictionary[nn.Module, Forward] = WeakKeyDictionary()

    def around(
        module: nn.Module, _forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        if module not in compiled:
            compiled[module] = handle.models.compile(module, mode=str(value))
        output = compiled[module](*arguments, **settings)
        # The next call of a captured graph writes to the same memory, and the script may keep what it was given.
        return with_tensors(output, torch.clone) if value == "reduce-overhead" else output

    handle.around_forward(around)


def _propose(situation: Situation) -> list[Proposal] | str:
    facts = situation.case.facts
    if any(model.compiled for model in facts.models):
        return "the script compiles its model itself"
    finding = situation.finding("launch_bound")
    if finding is not None:
        return [Proposal(value="default", saves=finding.recoverable, because=finding.title)]
    if situation.case.on_cpu:
        return "on a CPU it pays where a step is many small operators, and this one is not"
    saves = 0.15 * situation.case.phase(*GRADIENT_PHASES)
    return [Proposal(value="default", saves=saves, because="operators run one by one")]


OPTIMIZATION = Optimization(
    name="compile",
    title="the model's forward compiled by torch.compile, in place",
    guarantee="rounding",
    answers=("launch_bound",),
    propose=_propose,
    enable=enable,
    kind="word",
    words=("default", "reduce-overhead", "max-autotune-no-cudagraphs"),
    start_seconds=300.0,
    keeps_in="TORCHINDUCTOR_CACHE_DIR",
)
