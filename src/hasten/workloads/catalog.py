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
from hasten.workloads.films import make_films
from hasten.workloads.folders import ImageError, Images, choose, read_classes, read_images, read_unlabelled
from hasten.workloads.photographs import make_photographs, make_scenes, make_thumbnails

ENDLESS = 1000  # epochs: more than anybody waits for; a measured run ends by itself


class Prepare(Protocol):
    """Makes a workload's default data and says where it lies; asked again, it is done at once."""

    def __call__(self, *, num_images: int, on_progress: Callable[[int, int], None] | None = None) -> Path:
        """`on_progress(done, total)` counts images. Raises DataError or DirectoryError."""
        ...


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A plain training script and the data it trains on when the user has none to give."""

    name: str
    title: str
    prepare: Prepare
    read: Callable[[Path], Images]  # which of a folder's images it takes
    num_images: int  # one epoch of them: under a minute on two cores
    num_images_on_gpu: int  # enough steps for a steady figure where steps are short
    options: tuple[str, ...] = ()  # that belong to its story
    metric: str = ""  # in what it prints, once training is over
    num_epochs: int | None = None  # of a whole run, by which the metric is judged
    target: float | None = None  # of the metric, by which recipes are tried
    seconds_of_all: float = 290.0  # that `hasten speedtest all` gives it: 40 minutes are for all of them

    @property
    def script(self) -> Path:
        """Where it lies."""
        return Path(__file__).with_name(f"{self.name}.py")

    def arguments(self, folder: Path, *, num_images: int, num_epochs: int = ENDLESS) -> list[str]:
        """What stands after the script's name on its command line."""
        return ["--data", str(folder), "--images", str(num_images), *self.options, "--epochs", str(num_epochs)]


def describe_data(workload: Workload, folder: Path, *, num_images: int) -> tuple[int, int]:
    """(number of images, number of labels) of a folder that the workload can train on.

    The images that a run on `num_images` would take are opened, though not decoded: a foreign or an empty
    file is told here, a torn one by the script, which names it and exits with code 2 as well.
    Raises DataError, in one line, before any script is started.
    """
    try:
        images = workload.read(folder)
        train, val = choose(images, num_images=num_images)
    except ImageError as error:
        raise DataError(str(error)) from None
    for path in (images.paths[index] for index in train + val):
        try:
            with Image.open(path):
                pass
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = "not an image" if isinstance(error, Image.UnidentifiedImageError) else str(error)
            raise DataError(f"{path}: cannot be read ({reason}); mend or remove it") from None
    return len(images.paths), len(images.labels)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            name="xray",
            title="DenseNet-121 on chest X-ray films: is decoding the bottleneck?",
            prepare=make_films,
            read=read_images,
            num_images=192,
            num_images_on_gpu=2048,
            # An epoch as long as the real one: on few images, epoch starts would be half of what is seen.
            options=("--draws", "112120"),
            seconds_of_all=500.0,
        ),
        Workload(
            name="feed",
            title="A convolutional net on photographs, without workers or prefetching: who waits for whom?",
            prepare=make_photographs,
            read=read_classes,
            num_images=800,
            num_images_on_gpu=4000,
        ),
        Workload(
            name="superres",
            title="SRResNet on photographs that are read and prepared anew in every epoch: what does a cache need?",
            prepare=make_scenes,
            read=read_unlabelled,
            options=("--repeats", "4"),  # a set larger than a few photographs
            num_images=400,
            num_images_on_gpu=2000,
        ),
        Workload(
            name="efficient",
            title="A small net with every debugging aid left on and a constant rate: how soon is it as accurate?",
            prepare=make_thumbnails,
            read=read_classes,
            num_images=2400,
            num_images_on_gpu=6000,
            metric=r"accuracy ([0-9.]+)",
            num_epochs=12,
            target=0.5,
            seconds_of_all=480.0,
        ),
        Workload(
            name="classify",
            title="Photographs sorted into classes with every switch off: what does each switch gain?",
            prepare=make_photographs,
            read=read_classes,
            num_images=800,
            num_images_on_gpu=4000,
            metric=r"F1: ([0-9.]+)",
            num_epochs=4,
            seconds_of_all=440.0,
        ),
    )
}
