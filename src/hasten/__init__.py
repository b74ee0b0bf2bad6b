"""hasten makes PyTorch training faster and proves it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.data.loader import Loader
    from hasten.data.memo.pure import pure
    from hasten.notebook import measure

__all__ = ["Loader", "__version__", "measure", "pure"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Not before it is asked for: the command line does without torch.
    if name in ("Loader", "pure"):
        importlib.import_module("torch")  # first: at its end, fixes of a plan import what is imported below
    if name == "Loader":
        from hasten.data.loader import Loader

        return Loader
    if name == "pure":
        from hasten.data.memo.pure import pure

        return pure
    if name == "measure":
        from hasten.notebook import measure

        return measure
    raise AttributeError(f"module 'hasten' has no attribute {name!r}")
