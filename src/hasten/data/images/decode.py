"""From an image file to its pixels, by the fastest library that gives Pillow's pixels.

In: a path, or a file's bytes. Out: a uint8 array, or the exception that Pillow raises. Refuses to know what the pixels
are for.

Pillow reads every header, which costs some 15 microseconds, and so it decides what is an image and what is not.
simplejpeg (libjpeg-turbo, straight into numpy) then decodes the JPEGs that have one or three channels. It is told to
refuse whatever libjpeg merely warns of, and what it refuses goes to Pillow, as does every other format but a plain PNG
where OpenCV is installed.
"""

from __future__ import annotations

import functools
import io
import os
from typing import Literal

import numpy as np
import PIL
import simplejpeg
from PIL import Image, features

from hasten.data.images.png import decode_png
from hasten.errors import ImageModeError

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
