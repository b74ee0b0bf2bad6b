"""From an image file to its pixels, by the fastest library that gives Pillow's pixels.

Pillow reads every header, which costs some 15 microseconds, and so it decides what is an image and what is not, and raises
what there is to raise. simplejpeg (libjpeg-turbo, straight into numpy) then decodes the JPEGs that have one or three channels.
It is told to refuse whatever libjpeg merely warns of, and what it refuses goes to Pillow. Plain PNGs go to OpenCV, where it is
installed: a sixth less time, for libpng undoes the filters of each row faster than Pillow. One whose checksums do not all agree
goes to Pillow, as does every other format.
"""

from __future__ import annotations

import functools
import io
import os
import struct
import zlib
from typing import Any, Literal

import numpy as np
import PIL
import simplejpeg
from PIL import Image, features

from hasten.errors import ImageModeError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB = 0, 2
PLAIN = frozenset((b"IHDR", b"IDAT", b"IEND", b"pHYs", b"tEXt", b"zTXt", b"iTXt", b"tIME", b"gAMA", b"cHRM", b"sRGB"))
"""Chunks that change no pixel, in either library."""


def decode_png(data: bytes) -> np.ndarray | None:
    """(height, width) or (height, width, 3); None where OpenCV is missing, or the file is unusual or damaged."""
    color = _plain_color(data)
    cv2 = None if color is None else _opencv()
    if cv2 is None:
        return None
    try:
        array = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if array is None or color == GREY:
            return array
        return cv2.cvtColor(array, cv2.COLOR_BGR2RGB)
    except cv2.error:
        return None


def _plain_color(data: bytes) -> int | None:
    """The color type of a whole, undamaged file of 8 bits a channel, not interlaced; None for any other."""
    if not data.startswith(SIGNATURE):
        return None
    view, at, color = memoryview(data), len(SIGNATURE), None
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if kind not in PLAIN or end > len(data) or zlib.crc32(view[at + 4 : end - 4]) != _number(data, end - 4):
            return None
        if color is None:
            depth, color, _, _, interlaced = struct.unpack_from("5B", data, at + 16) if length == 13 else (0,) * 5
            if kind != b"IHDR" or depth != 8 or color not in (GREY, RGB) or interlaced:
                return None
        if kind == b"IEND":
            return color
        at = end
    return None


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


@functools.cache
def _opencv() -> Any:
    try:
        import cv2
    except ImportError:
        return None
    return cv2


DCT_REDUCTIONS = (8, 4, 2)
"""What libjpeg can shrink by while it decodes, largest first; its other ratios are slower than decoding in full."""


def read_image(
    source: str | os.PathLike[str] | bytes,
    *,
    mode: Literal["RGB", "L"] | None = "RGB",
    keep_grey: bool = False,
    at_least: tuple[int, int] | None = None,
) -> np.ndarray:
    """The pixels of `Image.open(source).convert(mode)`: uint8, (height, width, 3) for RGB, (height, width) for L.

    The array may be read-only. `mode` None leaves the image as it was opened, and raises ImageModeError where that is
    neither RGB nor L. `keep_grey` gives a grey file as (height, width) even for RGB: each of the three channels is
    that array. `at_least` (height, width) lets libjpeg shrink a JPEG to a half, a quarter or an eighth while it
    decodes, never below that size: these are then other pixels than Pillow's.

    Raises what `open` raises for a path, and what Pillow raises for what it cannot read or convert.
    """
    data = source if isinstance(source, bytes) else _read(source)
    with Image.open(io.BytesIO(data)) as image:
        if mode is None and image.mode not in ("RGB", "L"):
            raise ImageModeError(f"the image has mode {image.mode}: pass mode='RGB' or mode='L'")
        grey = image.mode == "L" and (mode != "RGB" or keep_grey)
        if image.format == "JPEG" and image.mode in ("RGB", "L") and simplejpeg_agrees():
            smallest = (0, 0) if at_least is None else _reduced(image.height, image.width, at_least)
            array = decode_jpeg(data, grey, smallest)
            if array is not None:
                return np.asarray(Image.fromarray(array).convert("L")) if mode == "L" and not grey else array
        as_it_is = grey or (image.mode == "RGB" and mode in (None, "RGB"))
        if image.format == "PNG" and as_it_is and (array := decode_png(data)) is not None:
            return array
        # A conversion to the mode that it has would be a copy, of which the page faults cost more than the bytes.
        return np.asarray(image if grey or mode in (None, image.mode) else image.convert(mode))


def decoder_versions() -> bytes:
    """What the pixels of `read_image` depend on beside the file; another value may mean other pixels."""
    libraries = {name: features.version(name) for name in ("jpg", "libjpeg_turbo", "zlib", "webp", "libtiff")}
    return repr((PIL.__version__, simplejpeg.__version__, sorted(libraries.items()))).encode()


def _read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def decode_jpeg(data: bytes, grey: bool, smallest: tuple[int, int]) -> np.ndarray | None:
    """None where simplejpeg refuses: the file is damaged or unusual, and Pillow decides what that means."""
    try:
        array = simplejpeg.decode_jpeg(
            data, "GRAY" if grey else "RGB", min_height=smallest[0], min_width=smallest[1], strict=True
        )
    except ValueError:
        return None
    return array[:, :, 0] if grey else array


def _reduced(height: int, width: int, at_least: tuple[int, int]) -> tuple[int, int]:
    """The smallest size that libjpeg can decode to and that is no smaller than `at_least`."""
    for reduction in DCT_REDUCTIONS:
        reduced = (-(-height // reduction), -(-width // reduction))
        if reduced[0] >= at_least[0] and reduced[1] >= at_least[1]:
            return reduced
    return height, width


@functools.cache
def simplejpeg_agrees() -> bool:
    """Whether simplejpeg and Pillow make the same pixels here.

    Both carry libjpeg-turbo in their wheels, but a Pillow built elsewhere may stand on another libjpeg, which
    upsamples colors in its own way.
    """
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (37, 53, 3), np.uint8))
    for subsampling in (0, 1, 2):  # Pillow's names of 4:4:4, 4:2:2 and 4:2:0
        file = io.BytesIO()
        noise.save(file, "JPEG", subsampling=subsampling)
        with Image.open(file) as image:
            ours = decode_jpeg(file.getvalue(), False, (0, 0))
            if ours is None or not np.array_equal(ours, np.asarray(image)):
                return False
    return True
