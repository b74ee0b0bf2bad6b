"""Changes that loading makes to an image besides its pixels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

TAG = "_hasten_memo"
"""The attribute of an image that holds its source or link."""
CHANGED_BY_LOAD = frozenset(
    ("_im", "im", "tile", "fp", "_readonly", "readonly", "map", "png", "_text", "_PngImageFile__idat", "_ended", TAG)
)


def load_and_compare(image: Any, load: Callable[..., Any] | None = None) -> tuple[bool, int | None]:
    """Load an image.

    Returns:
        Whether loading changed more than `finish_load` does, and its position in a file that Pillow does not own.
    """
    before, info = dict(image.__dict__), dict(image.info)
    state = image.mode, image.size, list(getattr(image, "private_chunks", ()))
    png = getattr(image, "png", None)
    text = None if png is None else dict(png.im_text)
    fp = image.fp
    image.load() if load is None else load(image)
    names = {*before} ^ {*image.__dict__} | {
        name for name, value in before.items() if image.__dict__.get(name) is not value
    }
    changes = (
        not names <= CHANGED_BY_LOAD
        or image.info != info
        or state != (image.mode, image.size, list(getattr(image, "private_chunks", ())))
        or (png is not None and (before.get("_text") is not None or image.__dict__.get("_text") != text))
        or bool(image.tile or image.fp is not None or getattr(image, "map", None))
    )
    position = None if image._exclusive_fp else fp.tell()
    return changes, position


def finish_load(image: Any, position: int | None) -> None:
    """Change an image as loading does, except for its pixels."""
    png = getattr(image, "png", None)
    if png is not None:
        image._text = png.im_text
        png.close()
        image.png = None
    image.tile = []
    image.map = None
    image.__dict__["_readonly" if "_readonly" in image.__dict__ else "readonly"] = 0
    if not image._exclusive_fp:
        if position is not None:
            image.fp.seek(position)
    elif image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None


@contextlib.contextmanager
def truncated_images(allowed: bool) -> Any:
    """Accept truncated files while decoding, or not, as when the image was opened."""
    module = file_module()
    before = module.LOAD_TRUNCATED_IMAGES
    if before == allowed:
        yield
        return
    module.LOAD_TRUNCATED_IMAGES = allowed
    try:
        yield
    finally:
        module.LOAD_TRUNCATED_IMAGES = before


def transparency_of(image: Any) -> Any:
    """Return a transparency that JSON can represent; Ellipsis for any other."""
    found = image.info.get("transparency")
    if found is None or type(found) is int:
        return found if found is not None or "transparency" not in image.info else Ellipsis
    if type(found) is tuple and all(type(one) is int for one in found):
        return list(found)
    return Ellipsis


def without_transparency(info: dict[Any, Any]) -> dict[Any, Any]:
    """Return an image's `info` without its transparency."""
    return {name: value for name, value in info.items() if name != "transparency"}


def info_of(image: Any) -> dict[Any, Any]:
    """Return a copy of `info`, as Pillow copies it to the result of an operation."""
    return image._copy_info() if hasattr(image, "_copy_info") else image.info.copy()


def file_module() -> Any:
    """Return the module `PIL.ImageFile`."""
    from PIL import ImageFile

    return ImageFile
