"""Chest-film-like images to train on, made on the spot: the default data of a speed test.

In: a folder and a number of films. Out: that folder, holding `images/*.png` and `labels.csv`.
Refuses to know torch, training, and what the films are used for.

A made film costs what a real one costs: grey, 1024 x 1024, about 400 kB of PNG, the same decode time.
Film `i` is a function of (seed, i, size) alone, so an interrupted run goes on where it stopped, and two
processes at work in one folder write the same bytes. Nothing torn is ever read: a film is written beside
its place and then renamed, `labels.csv` comes last, and what lies there already is checked at both ends.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from hasten.errors import DataError, DirectoryError
from hasten.workloads.anatomy import FINDINGS, draw_film, draw_labels

FILM_VERSION = 1  # counts up when the same (seed, i, size) gives other pixels
VAL_EVERY = 8  # every eighth film is for validation
PNG_HEAD, PNG_TAIL = b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"
DEAD_AFTER_SECONDS = 600.0  # a film is written in a fraction of a second; older leftovers are nobody's


def default_folder(*, num_images: int, size: int = 1024) -> Path:
    """Where made films are kept for the next time: one folder a set, in the user's cache folder."""
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "hasten" / f"films-v{FILM_VERSION}-{size}px-{num_images}"


def make_films(
    folder: Path,
    *,
    num_images: int,
    size: int = 1024,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make the films that are not there yet, and `labels.csv` for exactly `num_images` of them.

    `on_progress(done, total)` counts the films that are there, and is called from this thread.
    Raises DataError when the request makes no sense or the disk is too full, DirectoryError when the folder
    cannot be written.
    """
    if num_images < 1 or size < 32:
        raise DataError(f"{num_images} films of {size} px: ask for at least one film, of at least 32 px")
    films = [folder / "images" / f"film_{index:05d}.png" for index in range(num_images)]
    with told_in_one_line(folder):
        films[0].parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(films[0].parent)
        missing = [index for index, path in enumerate(films) if not is_whole(path, size=size)]
        check_disk_space(folder, needed=int(len(missing) * size * size * 0.5))
        for done in write_all(films, missing, size=size, seed=seed):
            if on_progress:
                on_progress(num_images - len(missing) + done, num_images)
        write_labels(folder / "labels.csv", films, seed=seed)
    return folder


def write_all(films: list[Path], missing: list[int], *, size: int, seed: int) -> Iterator[int]:
    """Write the missing films with every core; yield how many are done.

    Threads do: NumPy and Pillow's encoder let go of the interpreter's lock for nearly all of the work, and
    threads need no `__main__` guard of whoever calls.
    """
    with ThreadPoolExecutor(max_workers=num_cores()) as pool:
        futures = [pool.submit(write_film, films[index], index, size=size, seed=seed) for index in missing]
        try:
            yield 0
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                yield done
        finally:  # Ctrl-C, a full disk: only the films in hand are finished
            pool.shutdown(cancel_futures=True)


def write_film(path: Path, index: int, *, size: int, seed: int) -> None:
    """Draw one film and put it in its place, whole."""
    rng = np.random.default_rng([FILM_VERSION, seed, index, 1])
    pixels = draw_film(rng, labels_of(index, seed=seed), size=size)
    encoded = io.BytesIO()
    # Level 4: a third of level 6's time for a file of the same size.
    Image.fromarray(pixels).save(encoded, format="PNG", compress_level=4)
    put(path, encoded.getvalue())


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


def put(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one stroke: never half a file under that name, whoever else writes it."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except PermissionError:
        # Windows refuses to replace a file that another process has open: it is reading these same bytes.
        if not (path.exists() and path.read_bytes() == data):
            raise
    finally:
        part.unlink(missing_ok=True)


def is_whole(path: Path, *, size: int) -> bool:
    """Whether a film of this size lies there to its last byte: after a power cut a file can be short."""
    try:
        with path.open("rb") as file:
            head = file.read(24)
            file.seek(-len(PNG_TAIL), os.SEEK_END)
            tail = file.read()
    except OSError:
        return False
    side = size.to_bytes(4, "big")
    return head.startswith(PNG_HEAD) and head[16:24] == side + side and tail == PNG_TAIL


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished films of processes that were killed, not of one that is at work right now."""
    for part in folder.glob(".*.part"):
        try:
            if time.time() - part.stat().st_mtime > DEAD_AFTER_SECONDS:
                part.unlink()
        except OSError:  # its owner was quicker
            continue


def check_disk_space(folder: Path, *, needed: int) -> None:
    """Raise DataError before the first film, not at the last, when the disk cannot hold them all."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"making the films needs {needed / 1e6:.0f} MB and {folder} has {free / 1e6:.0f} MB free; "
            "free some, point XDG_CACHE_HOME (Windows: LOCALAPPDATA) elsewhere, or pass --data DIR"
        )


@contextmanager
def told_in_one_line(folder: Path) -> Generator[None]:
    """Turn what the file system refuses into an error a user can act on."""
    try:
        yield
    except DirectoryError:
        raise
    except OSError as error:
        raise DirectoryError(
            f"cannot write films to {folder} ({error.strerror or error}); pass --data DIR instead"
        ) from error


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
