"""The bundled workloads: which script, on which data, and whether a user's own data will do.

In: a workload's name, or a folder. Out: a `Workload`, or what the folder holds, or a DataError.
Refuses to import torch, and to start anything: the script is for others to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image

from hasten.errors import DataError
from hasten.workloads.films import FilmError, choose, read_films
from hasten.workloads.images import default_folder, make_films


class Prepare(Protocol):
    """Makes a workload's default data and says where it lies; asked again, it is done at once."""

    def __call__(self, *, num_images: int, on_progress: Callable[[int, int], None] | None = None) -> Path:
        """`on_progress(done, total)` counts images. Raises DataError or DirectoryError."""
        ...


@dataclass(frozen=True)
class Workload:
    """A plain training script and the data it trains on when the user has none to give."""

    name: str
    title: str
    script: Path
    prepare: Prepare
    num_images: int  # one epoch of them: under a minute on two cores
    num_images_on_gpu: int  # enough steps for a steady figure where steps are short
    full_epoch: int  # images in an epoch of the workload that this one stands for

    def arguments(self, folder: Path, *, num_images: int) -> list[str]:
        """What stands after the script's name on its command line."""
        # An epoch as long as the real one, and more of them than anybody waits for: the measured run ends by
        # itself. On few images, epochs would be short and their starts would be half of what is seen.
        draws = ["--draws", str(self.full_epoch), "--epochs", "1000"]
        return ["--data", str(folder), "--images", str(num_images), *draws]


def prepare_films(*, num_images: int, on_progress: Callable[[int, int], None] | None = None) -> Path:
    """Make the films in the user's cache folder, or find them there."""
    return make_films(default_folder(num_images=num_images), num_images=num_images, on_progress=on_progress)


def describe_data(folder: Path, *, num_images: int | None = None) -> tuple[int, int]:
    """(number of images, number of labels) of a folder that a workload can train on.

    The images that a run on `num_images` would take are opened, though not decoded: a foreign or an empty
    file is told here, a torn one by the script, which names it and exits with code 2 as well.
    Raises DataError, in one line, before any script is started.
    """
    try:
        films = read_films(folder)
        train, val = choose(films, num_images=num_images or WORKLOADS["xray"].num_images)
    except FilmError as error:
        raise DataError(str(error)) from None
    for path in (films.paths[index] for index in train + val):
        try:
            with Image.open(path):
                pass
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = "not an image" if isinstance(error, Image.UnidentifiedImageError) else str(error)
            raise DataError(f"{path}: cannot be read ({reason}); mend or remove it") from None
    return len(films.paths), len(films.labels)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            name="xray",
            title="DenseNet-121 on chest X-ray films: is decoding the bottleneck?",
            script=Path(__file__).with_name("xray.py"),
            prepare=prepare_films,
            num_images=192,
            num_images_on_gpu=2048,
            full_epoch=112_120,
        ),
    )
}
