"""hasten makes PyTorch training faster and checks that the model stays as good.

`Loader` replaces `torch.utils.data.DataLoader`. `measure()` measures a training loop in this process; `diagnose()` and
`tune()` do what the commands of that name do. `errors` has all exceptions, `records` all results.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten import errors, records
    from hasten.api import diagnose, load_plan, tune
    from hasten.data.epoch.stats import LoaderStats
    from hasten.data.loader import Loader
    from hasten.data.memo.budget import Forecast
    from hasten.data.memo.pure import pure
    from hasten.notebook import Measured, load_ipython_extension, measure
    from hasten.result import Diagnosed, Tuned
    from hasten.tuning.plan import Plan

__all__ = [
    "Diagnosed",
    "Forecast",
    "Loader",
    "LoaderStats",
    "Measured",
    "Plan",
    "Tuned",
    "__version__",
    "diagnose",
    "errors",
    "load_ipython_extension",
    "load_plan",
    "measure",
    "pure",
    "records",
    "tune",
]

__version__ = "0.1.0"

# Imported when they are used: the command line works without torch, and an import of hasten takes no time.
_MODULES = {
    "Diagnosed": "result",
    "Forecast": "data.memo.budget",
    "Loader": "data.loader",
    "LoaderStats": "data.epoch.stats",
    "Measured": "notebook",
    "Plan": "tuning.plan",
    "Tuned": "result",
    "diagnose": "api",
    "load_ipython_extension": "notebook",
    "load_plan": "api",
    "measure": "notebook",
    "pure": "data.memo.pure",
    "tune": "api",
}
_WITH_TORCH = ("Forecast", "Loader", "LoaderStats", "pure")


def __getattr__(name: str) -> object:
    if name in ("errors", "records"):
        return importlib.import_module(f"hasten.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'hasten' has no attribute {name!r}")
    if name in _WITH_TORCH:
        importlib.import_module("torch")  # first: at the end of its import, a plan's fixes import the modules below
    return getattr(importlib.import_module(f"hasten.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
