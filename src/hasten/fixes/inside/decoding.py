"""JPEG files that the script opens with Pillow, decoded by a faster library with the same pixels.

In: a handle. Out: `Image.load` of a JPEG that nobody has drafted or cut is simplejpeg's. Refuses whatever is unusual:
that is Pillow's to decode, or to complain of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hasten.agent.handle import Handle, NotApplicableError
from hasten.protocol import Value

Function = Callable[..., Any]


def decode(handle: Handle, _value: Value) -> None:
    """Pillow's JPEG files are decoded by simplejpeg."""
    try:
        from hasten.data.images.decode import decode_jpeg, simplejpeg_agrees
    except ImportError as error:
        raise NotApplicableError(f"it needs {error.name} in this environment") from None

    def take_over(module: ModuleType) -> None:
        if not simplejpeg_agrees():
            handle.refuse("this Pillow stands on another libjpeg, whose pixels differ")
            return
        handle.patches.wrap(module.JpegImageFile, "load", lambda original: _loading(original, decode_jpeg))

    # A script that opens no JPEG file never imports this, and needs nothing of ours.
    handle.patches.after_import("PIL.JpegImagePlugin", take_over)


def _loading(original: Function, decode_jpeg: Function) -> Function:
    @functools.wraps(original)
    def load(self: Any) -> Any:
        array = _decoded(self, decode_jpeg)
        if array is None:
            return original(self)
        from PIL import Image

        self.im = Image.fromarray(array, self.mode).im
        self.tile = []
        if self._exclusive_fp and self._close_exclusive_fp_after_loading and self.fp is not None:
            self.fp.close()
        self.fp = None
        self.load_end()
        return Image.Image.load(self)

    return load


def _decoded(image: Any, decode_jpeg: Function) -> Any:
    """The pixels; None where they are Pillow's to make."""
    tiles = image.tile
    if len(tiles) != 1 or image.mode not in ("RGB", "L") or image.decoderconfig != () or image.fp is None:
        return None
    tile = tiles[0]
    if tile[0] != "jpeg" or tuple(tile[1]) != (0, 0, *image.size) or tile[2] != 0 or tile[3][1] not in ("", None):
        return None
    try:
        position = image.fp.tell()
        image.fp.seek(0)
        data = image.fp.read()
        image.fp.seek(position)
    except (OSError, ValueError):
        return None
    array = decode_jpeg(data, image.mode == "L", (0, 0))
    return array if array is not None and array.shape[1::-1] == image.size else None
