"""A callback for the Hugging Face Trainer: `Trainer(callbacks=[MeasureCallback()])`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerCallback

from hasten.integrations.measuring import MeasuredTraining

if TYPE_CHECKING:
    from hasten.notebook import Measured


class MeasureCallback(TrainerCallback):
    """Measures `trainer.train()` and shows where the step's time goes.

    Args:
        html: file for the HTML page; None: print a summary.

    Attributes:
        result: the measured run after `train`; None before.

    Example:
        ::

            trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[MeasureCallback()])
            trainer.train()
    """

    def __init__(self, html: str | Path | None = None) -> None:
        self._training = MeasuredTraining(html)

    @property
    def result(self) -> Measured | None:
        """The measured run after `train`; None before."""
        return self._training.result

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to measure."""
        self._training.start()

    def on_train_end(self, _arguments: Any, state: Any, *_: Any, **__: Any) -> None:
        """End; the first process shows its result."""
        self._training.end(shows=state.is_world_process_zero)
