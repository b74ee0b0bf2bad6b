"""The workloads of `hasten speedtest`: training scripts, and the images they train on.

The scripts import nothing of hasten. In a checkout they lie in `examples/case_studies`, in an installed package beside this
one.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from hasten.errors import DataError
from hasten.folders import BUNDLED
from hasten.workloads.images import PHOTOS, SCENES, THUMBNAILS, XRAYS, ImageSet, make_images

ENDLESS = 1000  # epochs: more than anybody waits for; a measured run ends by itself


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training script, and the images it trains on when the user has none to give."""

    name: str
    title: str
    images: ImageSet
    reader: str  # the function of image_folder.py that the script calls
    num_images: int  # one epoch of them: under a minute on two cores
    num_images_on_gpu: int  # enough steps for a steady figure where steps are short
    options: tuple[str, ...] = ()  # further options of the script
    metric: str = ""  # a pattern for it in what the script prints at the end
    num_epochs: int | None = None  # of a whole run, by which the metric is judged
    target: float | None = None  # value of the metric, by which recipes are judged
    seconds_of_all: float = 290.0  # its budget in `hasten speedtest all`, which takes 40 minutes

    @property
    def script(self) -> Path:
        """The path of the script."""
        return BUNDLED / f"{self.name}.py"

    def prepare(self, *, num_images: int, on_progress: Callable[[int, int], object] | None = None) -> Path:
        """Return a folder of made images; the second time they are there already. Raises DirectoryError."""
        return make_images(self.images, num_images=num_images, on_progress=on_progress)

    def arguments(self, folder: Path, *, num_images: int, num_epochs: int = ENDLESS) -> list[str]:
        """The arguments of the script."""
        return ["--data", str(folder), "--images", str(num_images), *self.options, "--epochs", str(num_epochs)]


def describe_data(workload: Workload, folder: Path, *, num_images: int) -> tuple[int, int]:
    """Return (number of images, number of labels) of what a run on `num_images` images of a folder would take.

    The images are opened, though not decoded. Raises DataError before any script is started.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; pass --data with one that exists")
    try:
        train, val, labels = runpy.run_path(str(BUNDLED / "image_folder.py"))[workload.reader](folder, num_images)
    except OSError as error:
        raise DataError(str(error)) from None
    except ValueError as error:
        raise DataError(f"{folder / 'labels.csv'}: {error}") from None
    for path, _ in [*train, *val]:
        try:
            with Image.open(path):
                pass
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = "not an image" if isinstance(error, Image.UnidentifiedImageError) else str(error)
            raise DataError(f"{path}: cannot be read ({reason}); fix or remove it") from None
    return len(train) + len(val), len(labels)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            name="xray",
            title="DenseNet-121 on chest X-ray images: is decoding the bottleneck?",
            images=XRAYS,
            reader="labels_file",
            num_images=192,
            num_images_on_gpu=2048,
            # An epoch as long as the real one: on few images, half of what is seen would be starts of epochs.
            options=("--draws", "112120"),
            seconds_of_all=500.0,
        ),
        Workload(
            name="feed",
            title="A convolutional net on photographs, without workers or prefetching: who waits for whom?",
            images=PHOTOS,
            reader="image_folder",
            num_images=800,
            num_images_on_gpu=4000,
        ),
        Workload(
            name="superres",
            title="SRResNet on photographs that are read and prepared again in every epoch: what does a cache need?",
            images=SCENES,
            reader="unlabeled",
            options=("--repeats", "4"),  # a larger set of few files
            num_images=400,
            num_images_on_gpu=2000,
        ),
        Workload(
            name="efficient",
            title="A small net with every debugging aid left on and a constant rate: how soon is it as accurate?",
            images=THUMBNAILS,
            reader="image_folder",
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
            images=PHOTOS,
            reader="image_folder",
            num_images=800,
            num_images_on_gpu=4000,
            metric=r"F1: ([0-9.]+)",
            num_epochs=4,
            seconds_of_all=440.0,
        ),
    )
}
