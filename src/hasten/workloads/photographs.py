"""Photograph-like images to train on, made on the spot: the default data of the stories that need photographs.

In: a number of images. Out: a folder of JPEG files, `train/<class>/` and `val/<class>/`, or `train/` and `val/`.
Refuses to know torch, training, and what the images are used for.

A made photograph costs what a real one costs: the same size in pixels and bytes, the same decode time. Each shows one thing
before a landscape of clouds: how many lobes its outline has, and whether it is striped, is its class. Photograph `i` is a
function of (i, size) alone.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from hasten.errors import DataError
from hasten.workloads.writing import OnProgress, Picture, default_folder, write_pictures

PHOTOGRAPH_VERSION = 1  # counts up when the same (i, size) gives other pixels
LOBES = {"ball": 0, "bean": 2, "clover": 3, "cross": 4, "star": 5}
CLASSES = tuple(f"{fill}-{shape}" for shape in LOBES for fill in ("plain", "striped"))
BYTES_PER_PIXEL = 0.6  # of a file, at the most
VAL_EVERY = 8  # every eighth is for validation
CLASSIFIED = (400, 533)  # pixels, as clothing photographs of a shop are
SMALL = (48, 48)
DETAILED = (481, 321)  # pixels, as the photographs of the Berkeley segmentation set are


def make_photographs(folder: Path | None = None, *, num_images: int, on_progress: OnProgress | None = None) -> Path:
    """Photographs in class folders. Raises DataError and DirectoryError as `write_pictures` does."""
    return _make(folder, "photographs", num_images, CLASSIFIED, in_classes=True, on_progress=on_progress)


def make_thumbnails(folder: Path | None = None, *, num_images: int, on_progress: OnProgress | None = None) -> Path:
    """Small images in class folders. Raises DataError and DirectoryError likewise."""
    return _make(folder, "thumbnails", num_images, SMALL, in_classes=True, on_progress=on_progress)


def make_scenes(folder: Path | None = None, *, num_images: int, on_progress: OnProgress | None = None) -> Path:
    """Photographs without classes, and with finer detail. Raises DataError and DirectoryError likewise."""
    return _make(folder, "scenes", num_images, DETAILED, in_classes=False, on_progress=on_progress)


def _make(
    folder: Path | None,
    name: str,
    num_images: int,
    size: tuple[int, int],
    *,
    in_classes: bool,
    on_progress: OnProgress | None,
) -> Path:
    if num_images < 1:
        raise DataError(f"{num_images} images: ask for at least one")
    folder = folder or default_folder(f"{name}-v{PHOTOGRAPH_VERSION}-{num_images}")
    pictures: list[Picture] = []
    for index in range(num_images):
        fold = "val" if index // len(CLASSES) % VAL_EVERY == VAL_EVERY - 1 else "train"
        place = folder / fold / CLASSES[index % len(CLASSES)] if in_classes else folder / fold
        pictures.append(
            Picture(
                place / f"{index:05d}.jpg",
                size,
                lambda index=index: encode_photograph(index, size=size, detail=0.0 if in_classes else 1.0),
            )
        )
    write_pictures(folder, pictures, bytes_each=BYTES_PER_PIXEL * size[0] * size[1], on_progress=on_progress)
    return folder


def encode_photograph(index: int, *, size: tuple[int, int], detail: float) -> bytes:
    """One photograph of class `index` modulo ten, as JPEG; `detail` from 0 to 1 is fine texture, hence bytes."""
    rng = np.random.default_rng([PHOTOGRAPH_VERSION, index])
    pixels = draw_photograph(rng, index % len(CLASSES), size=size, detail=detail)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, format="JPEG", quality=90 if detail else 82)
    return encoded.getvalue()


def draw_photograph(rng: np.random.Generator, label: int, *, size: tuple[int, int], detail: float) -> np.ndarray:
    """(height, width, 3) uint8: a thing of class `label` before clouds."""
    width, height = size
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    x *= width / height
    pixels = clouds(rng, size=size, detail=detail)
    name = CLASSES[label]
    fill, _, shape = name.partition("-")
    centre, turn, radius = rng.uniform(-0.25, 0.25, 2), rng.uniform(0, 2 * np.pi), rng.uniform(0.45, 0.6)
    across, down = x - centre[0], y - centre[1]
    angle, distance = np.arctan2(down, across) + turn, np.hypot(across, down)
    outline = radius * (1 + (0.45 * np.cos(LOBES[shape] * angle) if LOBES[shape] else 0.0))
    inside = np.clip((outline - distance) * height / 4, 0, 1)[..., None]
    colour = rng.uniform(30, 225, 3).astype(np.float32)
    body = np.broadcast_to(colour, pixels.shape).copy()
    if fill == "striped":
        stripes = np.sin((across * np.cos(turn) + down * np.sin(turn)) * 2 * np.pi / 0.16) > 0
        body[stripes] = 255 - colour
    body += 0.35 * (clouds(rng, size=size, detail=detail) - 128)
    pixels += inside * (body - pixels)
    pixels += rng.standard_normal(pixels.shape, dtype=np.float32) * (1.5 + 5.0 * detail)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def clouds(rng: np.random.Generator, *, size: tuple[int, int], detail: float) -> np.ndarray:
    """(height, width, 3) float32 grey levels: noise at many scales, as in nature the stronger the coarser."""
    width, height = size
    field = np.full((height, width, 3), 128.0, dtype=np.float32)
    for cells, strength in ((3, 40.0), (8, 18.0), (24, 8.0 + 8.0 * detail), (80, 2.0 + 12.0 * detail)):
        if cells > width:
            break
        coarse = rng.standard_normal((cells * height // width + 1, cells, 3), dtype=np.float32) * strength
        grown = [np.asarray(Image.fromarray(coarse[..., c]).resize(size, Image.Resampling.BICUBIC)) for c in range(3)]
        field += np.stack(grown, axis=-1)
    return field
