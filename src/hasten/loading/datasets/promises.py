"""What stands in a sample for the result of a transform that has not run yet.

In: nothing. Out: objects that a dataset can hand on and put in a tuple, list or dict, and that note when anything else
is done with them. Refuses to know which transform it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

TOUCHES = """
    abs add aenter aiter and anext array array_interface await bool bytes call ceil complex contains delitem
    delattr divmod enter eq float floor floordiv format ge getitem gt hash iadd iand ifloordiv ilshift imatmul
    imod imul index int invert ior ipow irshift isub iter itruediv ixor le len length_hint lshift lt matmul mod
    mul ne neg next or pos pow radd rand rdivmod reduce reduce_ex repr reversed rfloordiv rlshift rmatmul rmod
    rmul ror round rpow rrshift rshift rsub rtruediv rxor setattr setitem str sub truediv trunc xor
"""
"""The special methods that ask something of an object."""


class TouchedError(Exception):
    """The dataset does something with a transform's result; no user sees this."""


@dataclass
class Witness:
    """Whether a promise was touched. Kept apart, for the dataset may catch what a promise raises."""

    touched: bool = False


class Promise:
    """The result of one call of a transform, or a part of it."""

    __slots__ = ("_number", "_part", "_witness")

    def __init__(self, number: int, part: int | str | None, witness: Witness) -> None:
        for name, value in zip(Promise.__slots__, (number, part, witness)):
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> NoReturn:
        _touch(self)


@dataclass(frozen=True)
class Token:
    """Where a promise was, in a sample that can be pickled."""

    number: int
    part: int | str | None


def token_of(promise: Promise) -> Token:
    """What it promises."""
    return Token(object.__getattribute__(promise, "_number"), object.__getattribute__(promise, "_part"))


def _touch(self: Promise, *arguments: Any, **named: Any) -> NoReturn:
    object.__getattribute__(self, "_witness").touched = True
    raise TouchedError


for _name in TOUCHES.split():
    setattr(Promise, f"__{_name}__", _touch)
