"""A callback for Lightning: `Trainer(callbacks=[MeasureCallback()])`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.integrations.measuring import MeasuredTraining

if TYPE_CHECKING:
    from hasten.notebook import Measured

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # pyright: ignore


class MeasureCallback(Callback):  # pyright: ignore[reportUntypedBaseClass, reportGeneralTypeIssues]
    """Measures `trainer.fit()` and shows where the step's time goes.

    Args:
        html: file for the HTML page; None: print a summary.

    Attributes:
        result: the measured run after `fit`; None before, or if it failed.

    Example:
        ::

            trainer = lightning.Trainer(max_epochs=1, callbacks=[MeasureCallback(html="step.html")])
            trainer.fit(model, loader)
    """

    def __init__(self, html: str | Path | None = None) -> None:
        self._training = MeasuredTraining(html)

    @property
    def result(self) -> Measured | None:
        """The measured run after `fit`; None before, or if it failed."""
        return self._training.result

    def on_train_start(self, *_: Any) -> None:
        """Begin to measure."""
        self._training.start()

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        """End; the first process shows its result."""
        self._training.end(shows=trainer.is_global_zero)

    def on_exception(self, *_: Any) -> None:
        """End without a result."""
        self._training.end(failed=True)
