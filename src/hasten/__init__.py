"""hasten makes PyTorch training faster and checks that the model stays as good."""

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
    # Imported lazily: the command line works without torch.
    if name in ("Loader", "pure"):
        importlib.import_module("torch")  # first: at the end of its import, a plan's fixes import the modules below
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
