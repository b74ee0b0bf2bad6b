"""JPEG files that the script opens with Pillow, decoded by simplejpeg with the same pixels.

Files that were drafted or cut, or are unusual, are Pillow's to decode, or to complain of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hasten.errors import NotApplicableError
from hasten.optimizations.applicable import training_loader
from hasten.optimizations.optimization import Optimization, Proposal
from hasten.protocol import Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.situation import Situation

Function = Callable[..., Any]


def enable(handle: Handle, _value: Value) -> None:
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


def _propose(situation: Situation) -> list[Proposal] | str:
    train = training_loader(situation)
    if isinstance(train, str):
        return train
    speedup = train.decode_speedup
    if speedup is None or speedup.low <= 1.0:
        return "no other decoder gives the same pixels sooner"
    decode = sum(s.seconds for s in train.stages if s.name == "decode")
    work = sum(s.seconds for s in train.stages) or 1.0
    saves = situation.headroom * decode / work * (1 - 1 / speedup.value)
    return [Proposal(value=True, saves=saves, because=f"{train.decode_library} gives the same pixels sooner")]


OPTIMIZATION = Optimization(
    name="decode",
    title="JPEG files opened by Pillow are decoded by the fastest library with the same pixels",
    guarantee="identical",
    answers=("slow_decode",),
    propose=_propose,
    enable=enable,
)
