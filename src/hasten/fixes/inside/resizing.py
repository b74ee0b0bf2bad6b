"""Images that the script resizes with Pillow, bilinear, resized by a vectorized library within 1/255 of Pillow's pixels."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any

from hasten.agent.handle import Handle, NotApplicableError
from hasten.protocol import Value

BILINEAR = 2  # Pillow's number for it


def resize(handle: Handle, _value: Value) -> None:
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
