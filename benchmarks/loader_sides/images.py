"""Photographs and X-ray images: the files, the transforms as everybody writes them, and the same by the fastest plain parts.

"Classic" is torchvision on Pillow images, as in its documentation. "Lean" is what a careful user of the peers would
write: simplejpeg into an array, torch's antialiased resize of bytes, floats made once a batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

from loader_sides.job import Job, Transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224
_MEAN_255 = torch.tensor(MEAN).view(1, 3, 1, 1) * 255
_SCALE = 1 / (torch.tensor(STD).view(1, 3, 1, 1) * 255)


def classic_transform(name: Transform) -> transforms.Compose:
    """`random_crop` as for training, `center` as for validation, `squash` the whole image to the size."""
    leading = {
        "random_crop": [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()],
        "center": [transforms.Resize(256), transforms.CenterCrop(SIZE)],
        "squash": [transforms.Resize((SIZE, SIZE))],
    }[name]
    return transforms.Compose([*leading, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def image_folder(job: Job) -> ImageFolder:
    """The folder of images with the classic transform."""
    folder = ImageFolder(job.xray if job.data == "xray" else job.photos, classic_transform(job.transform))
    if job.num_samples is not None:
        step = max(1, len(folder.samples) // job.num_samples)  # from all classes
        folder.samples = folder.imgs = folder.samples[::step][: job.num_samples]
        folder.targets = [label for _, label in folder.samples]
    return folder


def open_image(path: str) -> Image.Image:
    """As ImageFolder does."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def lean_pixels(data: bytes, transform: Transform) -> torch.Tensor:
    """uint8, (3, 224, 224), of a JPEG file's bytes."""
    decoded = torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)
    if transform == "random_crop":
        top, left, height, width = transforms.RandomResizedCrop.get_params(decoded, (0.08, 1.0), (3 / 4, 4 / 3))
        decoded = decoded[:, top : top + height, left : left + width]
    elif transform == "center":
        raise ValueError("the lean parts know no centre crop")
    small = torch.nn.functional.interpolate(decoded[None], size=(SIZE, SIZE), mode="bilinear", antialias=True)[0]
    return small.flip(-1) if transform == "random_crop" and random.random() < 0.5 else small


def lean_sample(sample: tuple[str, int], transform: Transform) -> tuple[torch.Tensor, int]:
    return lean_pixels(Path(sample[0]).read_bytes(), transform), sample[1]


def scale(pixels: torch.Tensor) -> torch.Tensor:
    """A batch of bytes to normalised floats, (N, 3, 224, 224)."""
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).sub_(_MEAN_255).mul_(_SCALE)


def lean_collate(samples: Sequence[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return scale(torch.stack([pixels for pixels, _ in samples])), torch.tensor([label for _, label in samples])


class LeanPhotos(torch.utils.data.Dataset):
    """The photographs as bytes of pixels; `lean_collate` makes the floats."""

    def __init__(self, job: Job) -> None:
        self.samples, self.transform = image_folder(job).samples, job.transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return lean_sample(self.samples[index], self.transform)


def pixel_errors(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]], job: Job, *, num_before: int
) -> dict[str, float | int | str]:
    """Largest and mean distance from the classic transform's pixels, in steps of 1/255, before normalisation.

    The images are in the folder's order, over and over, and `num_before` of them have passed.
    """
    folder = image_folder(job)
    std = torch.tensor(STD).view(3, 1, 1)
    largest, total, num_images = 0.0, 0.0, 0
    for images, labels in batches:
        for image, label in zip(images, labels):
            index = (num_before + num_images) % len(folder)
            expected, expected_label = folder[index]
            if int(label) != expected_label:
                return {"not compared": f"sample {index} has label {int(label)}, not {expected_label}"}
            error = (torch.as_tensor(np.asarray(image)) - expected).mul(std * 255).abs()
            largest, total, num_images = max(largest, float(error.max())), total + float(error.mean()), num_images + 1
    return {"largest": largest, "mean": total / num_images, "images": num_images}
