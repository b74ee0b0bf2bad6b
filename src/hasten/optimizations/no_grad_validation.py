"""Validation records nothing for a backward that never comes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from hasten.optimizations.optimization import (
    WORTH,
    Experiment,
    NotProposed,
    Optimization,
    Proposal,
    Symptoms,
    from_finding,
)
from hasten.protocol import Value

if TYPE_CHECKING:
    from torch import nn

    from hasten.agent.frames import Lines
    from hasten.agent.handle import Handle
    from hasten.agent.root import Forward
    from hasten.diagnosis.situation import Situation

ENOUGH = 2  # outputs in a row that were dropped: it is a validation


def enable(handle: Handle, _value: Value) -> None:
    """Have a forward in evaluation mode record nothing, where no backward ever comes.

    Whether one comes is seen for each way by which the script calls the model, all lines of it, for a function may serve
    validation and training: the first outputs there are recorded as ever, and only where those were dropped without a
    backward is nothing recorded from then on.
    """
    import torch

    from hasten.agent.frames import lines_above
    from hasten.agent.tree import tensors_in

    places = _Validations()

    def around(
        module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        # A network in evaluation mode may still pass gradients on to what made its input.
        if (
            module.training
            or not torch.is_grad_enabled()
            or any(tensor.requires_grad for tensor in tensors_in((arguments, settings)))
        ):
            return forward(*arguments, **settings)
        place = lines_above(sys._getframe())  # pyright: ignore[reportPrivateUsage]
        if places.is_validation(place):
            with torch.no_grad():
                return forward(*arguments, **settings)
        output = forward(*arguments, **settings)
        places.watch(place, output)
        return output

    handle.around_forward(around)


class _Validations:
    """The places from which a model is called in evaluation mode, and what became of its outputs."""

    def __init__(self) -> None:
        self._watched: dict[Lines, list[list[weakref.ref[Callable[..., object]]]]] = {}  # the last outputs' hooks
        self._dropped: dict[Lines, int] = {}  # outputs in a row
        self._learning: set[Lines] = set()

    def is_validation(self, place: Lines) -> bool:
        """Whether outputs made there were dropped, and no backward ever reached one."""
        watched = self._watched.setdefault(place, [])
        if len(watched) > 1:  # the last one is still in the script's variables
            dropped = not any(hook() for hook in watched.pop(0))  # a hook lives as long as the graph that it is on
            self._dropped[place] = self._dropped.get(place, 0) + 1 if dropped else 0
        return place not in self._learning and self._dropped.get(place, 0) >= ENOUGH

    def watch(self, place: Lines, output: object) -> None:
        """Note whether a backward reaches this output."""
        from hasten.agent.tree import tensors_in

        hooks: list[weakref.ref[Callable[..., object]]] = []
        for tensor in tensors_in(output):
            if tensor.requires_grad:

                def reached(_gradient: object) -> None:
                    self._learning.add(place)

                tensor.register_hook(reached)
                hooks.append(weakref.ref(reached))
        self._watched[place].append(hooks)


def _suspect(symptoms: Symptoms) -> bool | None:
    recorded = symptoms.facts.validation_grad and symptoms.shares.of("validation") >= WORTH
    return True if recorded else None


def _propose(situation: Situation) -> list[Proposal] | NotProposed | str:
    recorded = situation.case.facts.validation_grad
    likely = 0.2 * situation.case.phase("validation") if recorded else None
    otherwise = "recording them takes next to nothing here" if recorded else "validation records no gradients"
    return from_finding("validation_gradients", otherwise=otherwise, prior=lambda _: likely)(situation)


OPTIMIZATION = Optimization(
    name="no_grad_validation",
    title="validation records nothing for a backward that never comes",
    guarantee="identical",
    answers=("validation_gradients",),
    propose=_propose,
    enable=enable,
    on_any_machine=True,
    experiments=(
        Experiment(
            cause="validation_gradients",
            suspect=_suspect,
            title="validation without gradients",
            toggled=False,
            usual=0.15,
        ),
    ),
)
