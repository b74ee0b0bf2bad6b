"""Measure how fast raw bytes are read from a network mount or a URL, by 1, 4 and 16 readers at a time.

A remote store answers late, and many requests at once: the rate of one reader says little of what the store gives to several.
Each piece is read once where there are enough of them; on a mount its pages are dropped first.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hasten.errors import DataError
from hasten.machine.disk import find_disk
from hasten.records import ReadRate, ReadRates

T = TypeVar("T")

PACKAGES = {
    **{"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"},
    **{"http": "aiohttp", "https": "aiohttp", "hf": "huggingface_hub", "abfs": "adlfs", "az": "adlfs"},
}
CONCURRENCIES = (1, 4, 16)
PIECE = 256 << 10  # largest number of bytes of one read
MAX_FILES = 512  # that are looked for
MAX_PIECES = 64  # of a file
SECONDS = 2.0  # for each number of readers
MAX_BYTES = 256 << 20  # the same
ANSWER_SECONDS = 30.0  # within which the store must answer and list its files
SAME = 0.9  # share of the best rate that counts as reaching it


class Piece(NamedTuple):
    """A part of a file."""

    path: str
    start: int
    end: int


Read = Callable[[Piece], int]
"""Reads a piece and returns the number of bytes."""


def is_url(place: str) -> bool:
    """Whether a place is a URL rather than a folder."""
    return "://" in place and not place.startswith("file://")


def measure_url(url: str, *, seconds: float = SECONDS) -> ReadRates:
    """Measure reads of the object at a URL, or of the objects below it.

    Args:
        url: "s3://bucket/prefix", "https://host/file" or any other that fsspec knows.
        seconds: how long to read with each number of readers.

    Raises:
        DataError: if a package is missing, or the URL cannot be read.
    """
    try:
        import fsspec
    except ImportError:
        raise DataError(f"{url} cannot be read without fsspec: pip install fsspec") from None
    protocol = url.partition("://")[0]
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError:
        package = PACKAGES.get(protocol, f"'fsspec[{protocol}]'")
        raise DataError(f"{protocol}:// URLs cannot be read without {package}: pip install {package}") from None
    except Exception as error:
        raise DataError(f"{url} cannot be read: {_line(error)}; check the address") from None
    try:
        pieces = _within(ANSWER_SECONDS, lambda: _cut(_listed(fs, path)))
        _within(ANSWER_SECONDS, lambda: [_read_object(fs, piece) for piece in pieces[:1]])  # connects
    except Exception as error:
        raise DataError(f"{url} cannot be read: {_line(error)}; check the address, and your credentials") from None
    if not pieces:
        raise DataError(f"there is no object at {url}, or its size is not known; pass one that exists")
    return _rates(url, protocol, pieces, lambda piece: _read_object(fs, piece), seconds=seconds)


def measure_mount(folder: str, *, seconds: float = SECONDS) -> ReadRates | None:
    """Measure reads of the files below a folder; None if there are none that can be read."""
    files = ((name, os.stat(name).st_size) for name in _walk(folder))
    pieces = _cut(list(itertools.islice(files, MAX_FILES)))
    if not pieces:
        return None
    return _rates(folder, find_disk(folder)[0] or "", pieces, _read_file, seconds=seconds)


def _rates(place: str, file_system: str, pieces: Sequence[Piece], read: Read, *, seconds: float) -> ReadRates:
    left = itertools.cycle(pieces)
    rates = tuple(_rate(read, left, number, seconds=seconds) for number in CONCURRENCIES)
    if not all(rate.num_reads for rate in rates):
        raise DataError(f"{place} gave no bytes within {seconds:g} s; check the connection")
    return conclude(place, file_system, rates, read_again=sum(rate.num_reads for rate in rates) > len(pieces))


def conclude(place: str, file_system: str, rates: tuple[ReadRate, ...], *, read_again: bool) -> ReadRates:
    """Return what the rates of 1, 4 and 16 readers show: how many hide the latency, and what bounds one of them."""
    enough = SAME * max(rate.bytes_per_second for rate in rates)
    num_readers = next(rate.num_readers for rate in rates if rate.bytes_per_second >= enough)
    bound = "bandwidth" if num_readers == 1 else "latency"
    return ReadRates(place, file_system, rates, num_readers, bound, read_again)


def _rate(read: Read, pieces: Iterator[Piece], num_readers: int, *, seconds: float) -> ReadRate:
    """Read pieces with so many threads; failed reads are counted apart."""
    lock, latencies, done, num_failed = threading.Lock(), list[float](), 0, 0
    began = time.perf_counter()

    def run() -> None:
        nonlocal done, num_failed
        while time.perf_counter() - began < seconds and done < MAX_BYTES:
            with lock:
                piece = next(pieces)
            asked = time.perf_counter()
            try:
                size = read(piece)
            except Exception:  # of any library
                with lock:
                    num_failed += 1
                time.sleep(0.05)
                continue
            with lock:
                done += size
                latencies.append(time.perf_counter() - asked)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(num_readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + ANSWER_SECONDS)
    return ReadRate(
        num_readers=num_readers,
        num_reads=len(latencies),
        num_bytes=done,
        seconds=time.perf_counter() - began,
        latency_seconds=statistics.median(latencies) if latencies else 0.0,
        num_failed=num_failed,
    )


def _cut(files: Sequence[tuple[str, int]]) -> list[Piece]:
    """Cut files into pieces, in an order that no server and no disk expects."""
    pieces = [
        Piece(path, start, min(start + PIECE, size))
        for path, size in files
        for start in itertools.islice(range(0, size, max(PIECE, size // MAX_PIECES)), MAX_PIECES)
    ]
    random.Random(0).shuffle(pieces)
    return pieces


def _listed(fs: Any, path: str) -> list[tuple[str, int]]:
    """Return some of the objects at or below a path, with their sizes."""
    waiting: list[dict[str, Any]] = [fs.info(path)]
    found: list[tuple[str, int]] = []
    while waiting and len(found) < MAX_FILES:
        info = waiting.pop(0)
        if info.get("type") == "directory":
            waiting += [one for one in fs.ls(info["name"], detail=True) if one["name"] != info["name"]]
        elif info.get("size"):
            found.append((info["name"], int(info["size"])))
    return found


def _walk(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (
            name for one in names if os.access(name := str(Path(root, one)), os.R_OK) and Path(name).is_file()
        )


def _read_object(fs: Any, piece: Piece) -> int:
    return len(fs.cat_file(piece.path, start=piece.start, end=piece.end))


def _read_file(piece: Piece) -> int:
    with open(piece.path, "rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), piece.start, piece.end - piece.start, os.POSIX_FADV_DONTNEED)
        file.seek(piece.start)
        return len(file.read(piece.end - piece.start))


def _within(seconds: float, action: Callable[[], T]) -> T:
    """Return what an action returns; raises TimeoutError if it takes longer, and what it raises."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(action())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return found[0]


def _line(error: BaseException) -> str:
    """Return an exception as one line, with its cause where it says more."""
    cause = error.__cause__ or error
    text = str(error if isinstance(error, PermissionError) else cause).strip().partition("\n")[0]
    return text or type(error).__name__
