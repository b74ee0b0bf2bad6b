"""Where the images come from: the user's folders, or made here once and kept in the scratch folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from hasten.workloads.images import XRAYS, make_images

NUM_PHOTOS, NUM_XRAYS = 1024, 160
XRAY_REPEATS = 4  # links to each X-ray image: an epoch of the images alone would be a few batches


def photos_of(given: str | None, scratch: Path) -> Path:
    """A folder of class folders of photographs."""
    if given:
        return Path(given).resolve()
    folder = scratch / "photos"
    for number in range(NUM_PHOTOS):
        path = folder / f"class{number % 8}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            draw_photo(number).save(path, quality=90)
    return folder


def draw_photo(number: int) -> Image.Image:
    """Shapes and textures, 400 x 533: as many pixels and about as many bytes as a small photograph."""
    draw = np.random.default_rng(number)
    layers = [enlarged_noise(draw, size, strength) for size, strength in ((6, 60), (40, 25), (160, 8))]
    return Image.fromarray((128 + sum(layers)).clip(0, 255).astype(np.uint8))


def enlarged_noise(draw: np.random.Generator, size: int, strength: float) -> np.ndarray:
    noise = (draw.normal(0, strength, (size, size, 3)) + 128).clip(0, 255).astype(np.uint8)
    return np.asarray(Image.fromarray(noise).resize((400, 533), Image.Resampling.BICUBIC), np.float32) - 128


def xrays_of(given: str | None, scratch: Path) -> Path:
    """A folder of two class folders of links to the X-ray images, each linked several times."""
    if given:
        source = Path(given).resolve()
    else:
        source = make_images(XRAYS, num_images=NUM_XRAYS, folder=scratch / "made-xrays")
    linked = scratch / ("xrays" if given else "xrays-made")
    paths = sorted(source.rglob("*.png"))
    if not paths:
        raise SystemExit(f"no PNG files in {source}: give another folder with --xray")
    for repeat in range(XRAY_REPEATS):
        for number, path in enumerate(paths):
            link = linked / f"class{number % 2}" / f"{repeat}-{path.name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(path)
    return linked


def decoded_bytes(photos: str) -> int:
    """What all the photographs take as pixels, a byte a channel."""
    total = 0
    for path in Path(photos).rglob("*.jp*g"):
        with Image.open(path) as image:
            total += 3 * image.width * image.height
    return total
