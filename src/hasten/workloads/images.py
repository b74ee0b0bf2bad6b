"""Make the images that `hasten speedtest` trains on: textured noise that costs as much to read as real images.

An image is smooth noise at several scales, a wave for each of its labels, which is what a network can learn, and grain,
which sets the size of the file and so the time to decode it. It depends on its set and its number alone.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hasten.errors import DirectoryError
from hasten.folders import cache_folder

VERSION = 2  # increment it when the same number gives other pixels
PREVALENCE = 0.15  # of each label, where an image can have several


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """What the images of a set look like, and how they are labeled."""

    name: str
    size: tuple[int, int]  # width and height in pixels
    texture: tuple[tuple[int, float], ...]  # noise at each scale: cells across the image, and gray levels
    grain: float  # gray levels from one pixel to the next
    num_labels: int = 0
    several_labels: bool = False  # an image has any number of them, in `labels.csv`; otherwise one, its class folder
    wave: float = 0.0  # gray levels of a label's wave, on average
    quality: int | None = 82  # of a color JPEG file; None: a gray PNG file

    def labels_of(self, number: int) -> list[int]:
        """The labels of an image."""
        if self.several_labels:
            draws = np.random.default_rng([VERSION, number, 1]).random(self.num_labels)
            return [label for label, draw in enumerate(draws) if draw < PREVALENCE]
        return [number % self.num_labels] if self.num_labels else []

    def path_of(self, number: int) -> Path:
        """Where an image lies in the folder of its set."""
        has_classes = self.num_labels > 0 and not self.several_labels
        parent = f"{split_of(number)}/class{number % self.num_labels}" if has_classes else "images"
        return Path(parent, f"{number:05d}.{'jpg' if self.quality else 'png'}")


def split_of(number: int) -> str:
    """What an image is for: every ninth for validation, so that each of ten classes has some."""
    return "val" if number % 9 == 8 else "train"


XRAYS = ImageSet(
    name="xrays",
    size=(1024, 1024),
    texture=((4, 20.0), (16, 6.0), (128, 3.0), (512, 3.0)),
    grain=1.0,
    num_labels=15,
    several_labels=True,
    wave=8.0,
    quality=None,
)
PHOTOS = ImageSet(
    name="photos",
    size=(400, 533),
    texture=((3, 40.0), (8, 18.0), (24, 8.0), (80, 5.0)),
    grain=2.5,
    num_labels=10,
    wave=15.0,
)
THUMBNAILS = ImageSet(
    name="thumbnails",
    size=(48, 48),
    texture=((3, 40.0), (8, 18.0), (24, 8.0)),
    grain=1.5,
    num_labels=10,
    wave=4.0,
)
SCENES = ImageSet(
    name="scenes",
    size=(481, 321),
    texture=((3, 40.0), (8, 18.0), (24, 16.0), (80, 14.0)),
    grain=8.0,
    quality=90,
)


def make_images(
    images: ImageSet,
    *,
    num_images: int,
    folder: Path | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> Path:
    """Return the folder of a set, which is made if it is not there: complete, or not at all.

    Without `folder`, it lies in the user's cache folder. `on_progress(done, total)` counts images. Raises DirectoryError.
    """
    folder = folder or cache_folder() / f"{images.name}-v{VERSION}-{num_images}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            _write_images(made, images, num_images, on_progress or (lambda done, total: None))
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process has made the same images meanwhile
                    raise
    except OSError as error:
        reason = error.strerror or error
        raise DirectoryError(f"cannot write images to {folder} ({reason}); pass --data DIR instead") from error
    return folder


def _write_images(folder: Path, images: ImageSet, num_images: int, on_progress: Callable[[int, int], object]) -> None:
    for parent in {(folder / images.path_of(number)).parent for number in range(num_images)}:
        parent.mkdir(parents=True)
    if images.several_labels:
        _write_labels(folder / "labels.csv", images, num_images)
    pool = ThreadPoolExecutor()  # NumPy and Pillow release the interpreter's lock
    try:
        writes = [pool.submit(_write_image, folder, images, number) for number in range(num_images)]
        for done, write in enumerate(as_completed(writes), start=1):
            write.result()
            on_progress(done, num_images)
    finally:  # Ctrl-C, or a full disk
        pool.shutdown(cancel_futures=True)


def _write_labels(path: Path, images: ImageSet, num_images: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", *(f"label{label}" for label in range(images.num_labels)), "split"])
        for number in range(num_images):
            present = [int(label in images.labels_of(number)) for label in range(images.num_labels)]
            writer.writerow([images.path_of(number).name, *present, split_of(number)])


def _write_image(folder: Path, images: ImageSet, number: int) -> None:
    image = Image.fromarray(draw(images, number))
    options: dict[str, Any] = {"quality": images.quality} if images.quality else {"compress_level": 4}
    image.save(folder / images.path_of(number), **options)


def draw(images: ImageSet, number: int) -> np.ndarray:
    """The pixels of an image: (height, width) or (height, width, 3) uint8."""
    rng = np.random.default_rng([VERSION, number, 0])
    width, height = images.size
    channels = 3 if images.quality else 1
    pixels = rng.normal(128, images.grain, (height, width, channels)).astype(np.float32)
    for cells, strength in images.texture:
        coarse = rng.normal(0, strength, (channels, cells * height // width + 1, cells)).astype(np.float32)
        smooth = [Image.fromarray(channel).resize(images.size, Image.Resampling.BILINEAR) for channel in coarse]
        pixels += np.stack([np.asarray(channel) for channel in smooth], axis=-1)
    for label in images.labels_of(number):
        strength = images.wave * rng.uniform(0, 2)  # so that some images are hard
        pixels += strength * _wave(label, rng, width, height)[..., None]
    return pixels.clip(0, 255).astype(np.uint8).squeeze()


def _wave(label: int, rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """(height, width), from -1 to 1: a wave in both directions; its label says how often it repeats in each."""
    phases = rng.random(2)
    across = np.cos(2 * np.pi * (np.linspace(0, 2 + label % 5, width) + phases[0]))
    down = np.cos(2 * np.pi * (np.linspace(0, 2 + label // 5, height) + phases[1]))
    return np.outer(down, across)
