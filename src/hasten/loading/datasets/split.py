"""A dataset of any kind in two parts: what `__getitem__` does by itself, and what its transforms do to that.

In: a dataset, and which of its attributes are transforms. Out: a recipe. Refuses to know whether that is allowed: see
`watching.py`, and call `split` with what `survey.py` found.

`__getitem__` runs on a twin of the dataset that has deferring stand-ins for transforms. A stand-in does the settled
steps of its transform, notes what came of them, and returns a promise. As long as the dataset merely hands the promise
on, whatever it does cannot depend on what the transform draws. The noted calls are made later, in their order, so that
they draw what they would have drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hasten.loading.datasets.keeping import UnkeepableError, kept, opened
from hasten.loading.datasets.promises import Promise, TouchedError, Witness
from hasten.loading.recipe import UnsplitError

Transform = Callable[..., Any]


@dataclass(frozen=True)
class Steps:
    """A transform of one argument, taken apart."""

    whole: Transform
    settled: tuple[Transform, ...]
    """The steps that give the same for the same and are worth keeping the result of."""
    rest: tuple[Transform, ...]
    draws: bool
    """Whether the rest may draw."""
    any_image: bool
    """The rest does not ask an image for its file."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a transform that is still to be made."""

    attribute: str
    begun: bool
    """The settled steps have been done."""
    arguments: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Halfway:
    """A sample without what its transforms do to it. `calls` None: one that could not be parted."""

    calls: tuple[Call, ...] | None = None
    sample: Any = None


class Split:
    """A dataset whose transforms are put off."""

    keepable = True
    threadable = False

    def __init__(
        self,
        dataset: Any,
        transforms: Mapping[str, Steps],
        *,
        fingerprint: bytes,
        identify: Callable[[Any], bytes | None] | None = None,
        is_trial: bool = False,
    ) -> None:
        self.dataset = dataset
        self.transforms = dict(transforms)
        self.fingerprint = fingerprint
        self.draws_globally = any(steps.draws for steps in transforms.values())
        self.draws_itself = False
        self._identify = identify
        self._is_trial = is_trial
        """What could not be parted is then an error."""

    def prepare(self, index: Any) -> Halfway:
        """`dataset[index]`, as far as it does not depend on the transforms."""
        witness = Witness()
        calls: list[Call] = []
        stand_ins = {name: _Deferring(name, steps, calls, witness) for name, steps in self.transforms.items()}
        try:
            sample = kept(twin(self.dataset, stand_ins)[index])
        except Exception:  # where it is the dataset's own, it comes again when the dataset makes the sample
            if self._is_trial:
                raise
            return Halfway()
        if witness.touched and self._is_trial:
            raise TouchedError
        return Halfway() if witness.touched else Halfway(tuple(calls), sample)

    def complete(self, prepared: Halfway, generator: torch.Generator) -> Any:
        """The transforms."""
        if prepared.calls is None:
            raise UnsplitError
        try:
            return self._completed(prepared.calls, prepared.sample)
        except Exception as error:
            if self._is_trial:
                raise
            raise UnsplitError from error

    def _completed(self, calls: tuple[Call, ...], sample: Any) -> Any:
        results: list[Any] = []
        for call in calls:
            arguments, named = opened(call.arguments, results), opened(call.named, results)
            steps = self.transforms[call.attribute]
            if call.begun:
                (value,) = arguments
                for step in steps.rest:
                    value = step(value)
                results.append(value)
            else:
                results.append(steps.whole(*arguments, **named))
        return opened(sample, results)

    def identity(self, index: Any) -> bytes | None:
        """Of the file that the sample is read from, where that is known."""
        return None if self._identify is None else self._identify(index)

    def for_trial(self) -> Split:
        """The same on a twin, with transforms of its own in the state that these are in now."""
        transforms = copy.deepcopy(self.transforms, {id(self.dataset): self.dataset})
        dataset = twin(self.dataset, {name: steps.whole for name, steps in transforms.items()})
        return Split(dataset, transforms, fingerprint=self.fingerprint, is_trial=True)


def twin(dataset: Any, attributes: Mapping[str, Any]) -> Any:
    """The dataset with other attributes, as an object of its own."""
    kind: type[Any] = type(dataset)
    other = object.__new__(kind)
    vars(other).update(vars(dataset))
    vars(other).update(attributes)
    return other


def has_twin(dataset: Any) -> bool:
    """Whether `twin` makes a dataset that does the same."""
    kind = type(dataset)
    slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    ends_itself = hasattr(kind, "__del__")  # it may close what the twin shares
    return hasattr(dataset, "__dict__") and kind.__new__ is object.__new__ and not slots and not ends_itself


class _Deferring:
    """Stands in for a transform."""

    def __init__(self, attribute: str, steps: Steps, calls: list[Call], witness: Witness) -> None:
        self._attribute = attribute
        self._steps = steps
        self._calls = calls
        self._witness = witness

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        steps = self._steps
        promised = any(type(one) is Promise for one in (*arguments, *named.values()))
        if not promised and not steps.rest:
            return steps.whole(*arguments, **named)
        begun = bool(steps.settled) and len(arguments) == 1 and not named and not promised
        for step in steps.settled if begun else ():
            arguments = (step(*arguments),)
        try:
            given = kept((arguments, named), any_image=steps.any_image)
        except UnkeepableError:
            self._witness.touched = True  # the dataset may catch it
            raise
        self._calls.append(Call(self._attribute, begun, *given))
        return self._promises(len(self._calls) - 1, arguments, named)

    def _promises(self, number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What the transform will return, as far as the dataset sees: as many values as it was given."""
        if named and not arguments:
            return {name: Promise(number, name, self._witness) for name in named}
        if len(arguments) > 1:
            return tuple(Promise(number, part, self._witness) for part in range(len(arguments)))
        return Promise(number, None, self._witness)

    def __getattr__(self, name: str) -> Any:
        self._witness.touched = True
        raise TouchedError(name)
