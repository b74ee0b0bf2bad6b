"""Chest-film-like images to train on, made on the spot: the default data of the X-ray speed test.

In: a folder and a number of films. Out: that folder, holding `images/*.png` and `labels.csv`.
Refuses to know torch, training, and what the films are used for.

A made film costs what a real one costs: grey, 1024 x 1024, about 400 kB of PNG, the same decode time. Film `i` is a
function of (seed, i, size) alone. `labels.csv` comes last.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from PIL import Image

from hasten.errors import DataError
from hasten.workloads.anatomy import FINDINGS, draw_film, draw_labels
from hasten.workloads.writing import OnProgress, Picture, default_folder, put, told_in_one_line, write_pictures

FILM_VERSION = 1  # counts up when the same (seed, i, size) gives other pixels
VAL_EVERY = 8  # every eighth film is for validation
BYTES_PER_PIXEL = 0.5  # of a film's file, at the most


def make_films(
    folder: Path | None = None,
    *,
    num_images: int,
    size: int = 1024,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Path:
    """Make the films that are not there yet, and `labels.csv` for exactly `num_images` of them.

    Without a folder, one in the user's cache folder. `on_progress(done, total)` counts the films that are there. Raises
    DataError when the request makes no sense or the disk is too full, DirectoryError when the folder cannot be written.
    """
    if num_images < 1 or size < 32:
        raise DataError(f"{num_images} films of {size} px: ask for at least one film, of at least 32 px")
    folder = folder or default_folder(f"films-v{FILM_VERSION}-{size}px-{num_images}")
    films = [
        Picture(
            folder / "images" / f"film_{index:05d}.png",
            (size, size),
            lambda index=index: encode_film(index, size=size, seed=seed),
        )
        for index in range(num_images)
    ]
    write_pictures(folder, films, bytes_each=BYTES_PER_PIXEL * size * size, on_progress=on_progress)
    with told_in_one_line(folder):
        write_labels(folder / "labels.csv", [film.path for film in films], seed=seed)
    return folder


def encode_film(index: int, *, size: int, seed: int) -> bytes:
    """One film as PNG."""
    rng = np.random.default_rng([FILM_VERSION, seed, index, 1])
    pixels = draw_film(rng, labels_of(index, seed=seed), size=size)
    encoded = io.BytesIO()
    # Level 4: a third of level 6's time for a file of the same size.
    Image.fromarray(pixels).save(encoded, format="PNG", compress_level=4)
    return encoded.getvalue()


def write_labels(path: Path, films: list[Path], *, seed: int) -> None:
    """One row a film: its name, a 0 or 1 a finding, and its fold."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["Image Index", *FINDINGS, "fold"])
    for index, film in enumerate(films):
        fold = "val" if index % VAL_EVERY == VAL_EVERY - 1 else "train"
        writer.writerow([film.name, *(int(label) for label in labels_of(index, seed=seed)), fold])
    put(path, text.getvalue().encode())


def labels_of(index: int, *, seed: int) -> np.ndarray:
    """(15,) bool: the findings on film `index`; a stream of its own, so that labels need no drawing."""
    return draw_labels(np.random.default_rng([FILM_VERSION, seed, index, 0]))
