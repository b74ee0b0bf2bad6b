"""The experiment trackers that a script has at work: they get hasten's figures beside its own.

In: figures by name. Out: `hasten/<name>` in TensorBoard, W&B and MLflow. Refuses to begin a run of its own, and to import a
tracker that the script has not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

from hasten.agent.patches import Patches, warn


class Trackers:
    """Those of one process."""

    def __init__(self, patches: Patches) -> None:
        self._writers: WeakSet[Any] = WeakSet()
        self._failed: set[str] = set()
        patches.after_import("torch.utils.tensorboard.writer", lambda module: self._watch(patches, module))

    def _watch(self, patches: Patches, module: Any) -> None:
        """Remember the writers that the script makes."""

        def made(original: Callable[..., object]) -> Callable[..., object]:
            @functools.wraps(original)
            def __init__(writer: Any, *arguments: object, **settings: object) -> None:
                original(writer, *arguments, **settings)
                self._writers.add(writer)

            return __init__

        patches.wrap(module.SummaryWriter, "__init__", made)

    def track(self, figures: Mapping[str, float], *, step: int) -> None:
        """Hand the figures to every tracker that is at work; one that fails is left alone from then on."""
        named = {f"hasten/{name}": value for name, value in figures.items()}
        for name, hand in (("TensorBoard", self._tensorboard), ("W&B", _wandb), ("MLflow", _mlflow)):
            if name in self._failed:
                continue
            try:
                hand(named, step)
            except Exception as error:
                self._failed.add(name)
                warn(f"{name} does not take hasten's figures ({error!r})")

    def _tensorboard(self, figures: Mapping[str, float], step: int) -> None:
        for writer in list(self._writers):
            if getattr(writer, "file_writer", None) is not None:  # not closed
                for name, value in figures.items():
                    writer.add_scalar(name, value, step)


def _wandb(figures: Mapping[str, float], _step: int) -> None:
    wandb: Any = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.log(dict(figures), commit=False)  # they join the script's own next step


def _mlflow(figures: Mapping[str, float], step: int) -> None:
    mlflow: Any = sys.modules.get("mlflow")
    if mlflow is not None and hasattr(mlflow, "active_run") and mlflow.active_run() is not None:
        mlflow.log_metrics({name.replace("/", "."): value for name, value in figures.items()}, step=step)
