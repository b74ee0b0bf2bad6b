"""Seed the random number generators of a comparison, or shift the script's own seeds.

Generators are seeded before the script's first line, and again whenever the script seeds them. Generators that a script
creates from the system's entropy are left alone.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable
from types import ModuleType

import torch

from hasten.patches import Patches

Function = Callable[..., object]


def seed_everything(seed: int, *, shift: int, patches: Patches) -> None:
    """Seed torch, NumPy and random; add `shift` to every whole number that the script seeds them with."""
    torch.manual_seed(seed + shift)
    random.seed(seed + shift)

    def numpy(module: ModuleType) -> None:
        module.random.seed((seed + shift) % 2**32)
        if shift:
            patches.wrap(module.random, "seed", shifted)
            patches.wrap(module.random, "default_rng", shifted)

    def shifted(original: Function) -> Function:
        @functools.wraps(original)
        def call(*arguments: object, **settings: object) -> object:
            arguments = (*map(moved, arguments[:1]), *arguments[1:])
            return original(*arguments, **{n: moved(v) if n in ("seed", "a") else v for n, v in settings.items()})

        return call

    def moved(seed: object) -> object:
        try:
            return (operator.index(seed) + shift) % 2**32  # type: ignore[arg-type]
        except TypeError:
            return seed

    patches.after_import("numpy", numpy)
    if shift:
        patches.wrap(torch, "manual_seed", shifted)
        patches.wrap(torch.random, "manual_seed", shifted)
        patches.wrap(random, "seed", shifted)
