"""Hugging Face datasets: an Arrow table of the image files, `set_transform`, torch's DataLoader."""

from __future__ import annotations

import datasets
import torch
from torch.utils.data import DataLoader

from loader_sides.images import image_folder
from loader_sides.job import Epoch, Job


class Transformed:
    """A batch of rows to a batch of tensors; travels to the workers."""

    def __init__(self, transform: object) -> None:
        self.transform = transform

    def __call__(self, rows: dict[str, list]) -> dict[str, list]:
        rows["image"] = [self.transform(image.convert("RGB")) for image in rows["image"]]
        return rows


def pair(rows: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([row["image"] for row in rows]), torch.tensor([row["label"] for row in rows])


def open_side(job: Job) -> Epoch:
    folder = image_folder(job)
    paths, labels = zip(*folder.samples)
    table = datasets.Dataset.from_dict({"image": list(paths), "label": list(labels)})
    table = table.cast_column("image", datasets.Image())
    table.set_transform(Transformed(folder.transform))
    loader = DataLoader(
        table,
        batch_size=job.batch_size,
        shuffle=job.shuffle,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        collate_fn=pair,
    )
    return lambda: loader
