"""Pictures written whole, by every core, into a folder that is there the next time.

In: where each picture goes and how it is made. Out: files, each complete. Refuses to know what they show.

A picture is a function of its number alone, so an interrupted run goes on where it stopped, and two processes at work in
one folder write the same bytes. Nothing torn is ever read: a picture is written beside its place and then renamed, and
what lies there already is checked at both ends.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from hasten.errors import DataError, DirectoryError
from hasten.folders import cache_folder

TAILS = {".png": b"\x00\x00\x00\x00IEND\xaeB`\x82", ".jpg": b"\xff\xd9"}
DEAD_AFTER_SECONDS = 600.0  # a picture is written in a fraction of a second; older leftovers are nobody's

OnProgress = Callable[[int, int], object]  # pictures that are there, of how many


@dataclass(frozen=True)
class Picture:
    """One picture to be made."""

    path: Path  # its ending says its format
    size: tuple[int, int]  # width and height in pixels
    encode: Callable[[], bytes]


def default_folder(name: str) -> Path:
    """Where made pictures are kept for the next time: one folder a set, in the user's cache folder."""
    return cache_folder() / name


def write_pictures(
    folder: Path, pictures: Sequence[Picture], *, bytes_each: float, on_progress: OnProgress | None = None
) -> None:
    """Write the pictures that are not there yet. `on_progress(done, total)` is called from this thread.

    Raises DataError when the disk is too full, DirectoryError when the folder cannot be written.
    """
    with told_in_one_line(folder):
        for place in {picture.path.parent for picture in pictures}:
            place.mkdir(parents=True, exist_ok=True)
            remove_leftovers(place)
        missing = [picture for picture in pictures if not is_whole(picture)]
        check_disk_space(folder, needed=int(len(missing) * bytes_each))
        for done in _write_all(missing):
            if on_progress:
                on_progress(len(pictures) - len(missing) + done, len(pictures))


def _write_all(missing: Sequence[Picture]) -> Iterator[int]:
    """Write them with every core; yield how many are done.

    Threads do: NumPy and Pillow's encoders let go of the interpreter's lock for nearly all of the work, and threads
    need no `__main__` guard of whoever calls.
    """
    with ThreadPoolExecutor(max_workers=num_cores()) as pool:
        futures = [pool.submit(_write, picture) for picture in missing]
        try:
            yield 0
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                yield done
        finally:  # Ctrl-C, a full disk: only the pictures in hand are finished
            pool.shutdown(cancel_futures=True)


def _write(picture: Picture) -> None:
    put(picture.path, picture.encode())


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


def is_whole(picture: Picture) -> bool:
    """Whether it lies there to its last byte: after a power cut a file can be short."""
    try:
        with Image.open(picture.path) as image:
            if image.size != picture.size:
                return False
        with picture.path.open("rb") as file:
            tail = TAILS[picture.path.suffix]
            file.seek(-len(tail), os.SEEK_END)
            return file.read() == tail
    except (OSError, SyntaxError, ValueError):
        return False


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished pictures of processes that were killed, not of one that is at work right now."""
    for part in folder.glob(".*.part"):
        try:
            if time.time() - part.stat().st_mtime > DEAD_AFTER_SECONDS:
                part.unlink()
        except OSError:  # its owner was quicker
            continue


def check_disk_space(folder: Path, *, needed: int) -> None:
    """Raise DataError before the first picture, not at the last, when the disk cannot hold them all."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"making the images needs {needed / 1e6:.0f} MB and {folder} has {free / 1e6:.0f} MB free; "
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
            f"cannot write images to {folder} ({error.strerror or error}); pass --data DIR instead"
        ) from error


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
