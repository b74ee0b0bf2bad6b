"""Would another decoder give the same pixels sooner? Asked on the script's own files.

In: image files. Out: the ratio of decoding times, with its interval. Refuses to recommend.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hasten.records import Interval
from hasten.stats import ratio_interval

MOST_FILES = 12
ROUNDS = 4


def compare_decoders(files: Sequence[str]) -> tuple[Interval, str] | None:
    """Pillow's seconds over simplejpeg's on the JPEG files among `files`; None when there are none."""
    contents = [data for data in (_read(f) for f in files[: 4 * MOST_FILES]) if data[:3] == b"\xff\xd8\xff"]
    contents = contents[:MOST_FILES]
    if len(contents) < 4:
        return None
    import io

    import simplejpeg
    from PIL import Image

    def pillow(data: bytes) -> object:
        return Image.open(io.BytesIO(data)).convert("RGB")

    def other(data: bytes) -> object:
        return simplejpeg.decode_jpeg(data, colorspace="RGB")

    times: dict[object, list[float]] = {pillow: [], other: []}
    try:
        for _ in range(ROUNDS):
            for decode in (pillow, other, other, pillow):
                start = time.thread_time()
                for data in contents:
                    decode(data)
                times[decode].append(time.thread_time() - start)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None  # a file that only one of them reads says nothing about speed
    return Interval(*ratio_interval(times[pillow], times[other])), "simplejpeg"


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:
        return b""
