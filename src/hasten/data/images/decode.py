"""Decode image files with the fastest library that returns Pillow's pixels.

Pillow reads every header, which takes about 15 microseconds, so Pillow decides what is an image and raises the errors.
simplejpeg (libjpeg-turbo, straight into NumPy) then decodes JPEGs with one or three channels. It runs in strict mode, which
rejects whatever libjpeg merely warns about; rejected files go to Pillow. Plain PNGs go to OpenCV if it is installed: it takes
a sixth less time, because libpng undoes the filters of each row faster than Pillow. A PNG with a bad checksum, and every
other format, goes to Pillow.
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
"""Chunks that do not affect the pixels, in either library."""


def decode_png(data: bytes) -> np.ndarray | None:
    """Return (height, width) or (height, width, 3); None if OpenCV is missing or the file is unusual or damaged."""
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
    """Return the color type of a complete, undamaged, non-interlaced file with 8 bits per channel; otherwise None."""
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
"""Factors by which libjpeg can shrink while decoding, largest first; its other ratios are slower than full decoding."""


def read_image(
    source: str | os.PathLike[str] | bytes,
    *,
    mode: Literal["RGB", "L"] | None = "RGB",
    keep_grey: bool = False,
    at_least: tuple[int, int] | None = None,
) -> np.ndarray:
    """Return the pixels of `Image.open(source).convert(mode)`.

    Args:
        source: a path, or the content of a file.
        mode: None leaves the image's mode unchanged.
        keep_grey: return a grayscale file as (height, width) even for RGB; each of the three channels equals that array.
        at_least: (height, width). Lets libjpeg shrink a JPEG to a half, a quarter or an eighth while decoding, never
            below that size; these pixels differ from Pillow's.

    Returns:
        A uint8 array, (height, width, 3) for RGB, (height, width) for L. It may be read-only.

    Raises:
        ImageModeError: if `mode` is None and the image is neither RGB nor L.
        Exception: whatever `open` raises for a path, and Pillow for an image that it cannot read or convert.
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
        is_unconverted = grey or (image.mode == "RGB" and mode in (None, "RGB"))
        if image.format == "PNG" and is_unconverted and (array := decode_png(data)) is not None:
            return array
        # Converting to the image's own mode would copy it, and the page faults cost more than copying the bytes.
        return np.asarray(image if grey or mode in (None, image.mode) else image.convert(mode))


def decoder_versions() -> bytes:
    """Return what the pixels of `read_image` depend on besides the file; a different value may mean different pixels."""
    libraries = {name: features.version(name) for name in ("jpg", "libjpeg_turbo", "zlib", "webp", "libtiff")}
    return repr((PIL.__version__, simplejpeg.__version__, sorted(libraries.items()))).encode()


def _read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def decode_jpeg(data: bytes, grey: bool, smallest: tuple[int, int]) -> np.ndarray | None:
    """Return the pixels; None if simplejpeg rejects the file as damaged or unusual, which leaves the decision to Pillow."""
    try:
        array = simplejpeg.decode_jpeg(
            data, "GRAY" if grey else "RGB", min_height=smallest[0], min_width=smallest[1], strict=True
        )
    except ValueError:
        return None
    return array[:, :, 0] if grey else array


def _reduced(height: int, width: int, at_least: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest (height, width) that libjpeg can decode to and that is at least `at_least`."""
    for reduction in DCT_REDUCTIONS:
        reduced = (-(-height // reduction), -(-width // reduction))
        if reduced[0] >= at_least[0] and reduced[1] >= at_least[1]:
            return reduced
    return height, width


@functools.cache
def simplejpeg_agrees() -> bool:
    """Whether simplejpeg and Pillow return the same pixels on this machine.

    Both ship libjpeg-turbo in their wheels, but a Pillow built elsewhere may use another libjpeg, which upsamples colors
    differently.
    """
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (37, 53, 3), np.uint8))
    for subsampling in (0, 1, 2):  # Pillow's values for 4:4:4, 4:2:2 and 4:2:0
        file = io.BytesIO()
        noise.save(file, "JPEG", subsampling=subsampling)
        with Image.open(file) as image:
            ours = decode_jpeg(file.getvalue(), False, (0, 0))
            if ours is None or not np.array_equal(ours, np.asarray(image)):
                return False
    return True
