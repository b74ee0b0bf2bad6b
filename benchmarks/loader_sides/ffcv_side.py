"""FFCV: its own file of JPEGs, which it writes anew at quality 90, or of raw pixels (`raw`); its own crop and resize.

Its readers are threads of compiled code: the first batch includes compiling. Options: `raw`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.fields.rgb_image import ResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter

from loader_sides.conversion import converted
from loader_sides.images import MEAN, SIZE, STD, image_folder, open_image
from loader_sides.job import Epoch, Job


class Samples(torch.utils.data.Dataset):
    """What its writer reads."""

    def __init__(self, samples: list[tuple[str, int]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.samples[index]
        return np.asarray(open_image(path)), label


class WholeImage(ResizedCropRGBImageDecoder):
    """The whole image to the size: for the comparison with Pillow."""

    scale, ratio = (1.0, 1.0), (1.0, 1.0)

    @property
    def get_crop_generator(self) -> Callable:
        return lambda height, width, scale, ratio: (0, 0, height, width)


def open_side(job: Job) -> Epoch:
    samples = image_folder(job).samples
    mode = "raw" if job.options.get("raw") else "jpg"

    def write(place: Path) -> None:
        fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=90), "label": IntField()}
        DatasetWriter(str(place / "photos.beton"), fields, num_workers=1).from_indexed_dataset(
            Samples(samples), shuffle_indices=False
        )

    file = converted(job, f"ffcv-{mode}", write) / "photos.beton"
    if job.transform == "random_crop":
        pixels = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    else:
        pixels = [WholeImage((SIZE, SIZE))]
    mean, std = 255 * np.array(MEAN), 255 * np.array(STD)
    floats = [NormalizeImage(mean, std, np.float32), ToTensor(), ToTorchImage(channels_last=False)]
    loader = Loader(
        str(file),
        batch_size=job.batch_size,
        num_workers=job.workers,
        order=OrderOption.RANDOM if job.shuffle else OrderOption.SEQUENTIAL,
        os_cache=True,
        drop_last=False,
        pipelines={"image": [*pixels, *floats], "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return lambda: loader
