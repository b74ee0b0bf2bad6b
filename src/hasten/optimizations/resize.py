"""Images that the script resizes with Pillow, bilinear, resized by a vectorized library within 1/255 of Pillow's pixels."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hasten.errors import NotApplicableError
from hasten.optimizations.applicable import training_loader
from hasten.optimizations.optimization import Optimization, Proposal
from hasten.protocol import Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation

RESIZING = (
    "Image.resize",
    "Resize",
    "RandomResizedCrop",
)  # Pillow itself, and torchvision's transforms of its images
RESIZE_SAVES = 0.7  # of the time of bilinear resizing: 1.02 ms became 0.23 ms (533 x 400 to 341 x 256, one core)
BILINEAR = 2  # Pillow's number for it


def enable(handle: Handle, _value: Value) -> None:
    """Pillow's bilinear `Image.resize` is cykooz-resizer's."""
    try:
        from hasten.data.images.pixels import bilinear_resizer
    except ImportError as error:
        raise NotApplicableError(f"it needs {error.name} in this environment") from None

    def take_over(module: ModuleType) -> None:
        kind: Any = module.Image  # type: ignore[attr-defined]
        new = module.new  # type: ignore[attr-defined]
        handle.patches.wrap(kind, "resize", lambda original: _resizing(original, new, bilinear_resizer()))

    handle.patches.after_import("PIL.Image", take_over)


def _resizing(
    original: Callable[..., Any], new: Callable[..., Any], resize_into: Callable[[Any, Any], None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def resize(self: Any, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        is_plain = resample == BILINEAR and self.mode in ("RGB", "L") and reducing_gap is None
        if not is_plain or (box is not None and tuple(box) != (0, 0, *self.size)):
            return original(self, size, resample, box, reducing_gap)
        try:
            width, height = map(operator.index, size)
        except (TypeError, ValueError):
            return original(self, size, resample, box, reducing_gap)
        if (width, height) == self.size or min(width, height) < 1 or min(self.size) < 1:
            return original(self, size, resample, box, reducing_gap)
        resized = new(self.mode, (width, height))
        resize_into(self, resized)
        resized.info = self._copy_info() if hasattr(self, "_copy_info") else self.info.copy()
        return resized

    resize.changes_result = f"cykooz-resizer {version('cykooz-resizer')}".encode()  # type: ignore[attr-defined]
    return resize


def _propose(situation: Situation) -> list[Proposal] | str:
    train = training_loader(situation)
    if isinstance(train, str):
        return train
    work = sum(s.seconds for s in train.stages)
    resizing = sum(s.seconds for s in train.stages if s.name == "transform" and s.detail in RESIZING)
    if not resizing:
        return "no image is resized by Pillow"
    saves = situation.headroom * resizing / work * RESIZE_SAVES
    return [Proposal(value=True, saves=saves, because="Pillow resizes without vector instructions")]


OPTIMIZATION = Optimization(
    name="resize",
    title="images are resized by a vectorized library, within 1/255 of Pillow's pixels",
    guarantee="precision",
    answers=("slow_transform", "slow_decode"),
    propose=_propose,
    enable=enable,
)
