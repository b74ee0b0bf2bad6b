"""MONAI's CacheDataset: what comes before the first random transform is kept in memory.

Options: `cache_rate`, the share of the samples that is kept; `threads`, its loader whose workers are threads instead of
processes. What is kept is not copied for each use, which is its faster setting and safe here.
"""

from __future__ import annotations

import torch
from monai.data import CacheDataset, DataLoader, ThreadDataLoader
from monai.transforms import Compose, Lambda

from loader_sides.images import image_folder, open_image
from loader_sides.job import Epoch, Job


class First:
    """A sample with its image put through a function; travels to the workers."""

    def __init__(self, function: object) -> None:
        self.function = function

    def __call__(self, sample: dict[str, object]) -> dict[str, object]:
        return {**sample, "image": self.function(sample["image"])}


def pair(samples: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([sample["image"] for sample in samples]), torch.tensor([sample["label"] for sample in samples])


def open_side(job: Job) -> Epoch:
    folder = image_folder(job)
    # MONAI keeps what its own deterministic transforms make; a transform of torchvision ends that part.
    fixed = job.transform != "random_crop"
    steps = [Lambda(First(open_image)), Lambda(First(folder.transform)) if fixed else First(folder.transform)]
    dataset = CacheDataset(
        [{"image": path, "label": label} for path, label in folder.samples],
        Compose(steps),
        cache_rate=job.options.get("cache_rate", 0.0),
        num_workers=2,
        progress=False,
        copy_cache=False,
    )
    if job.options.get("threads"):
        loader_class, way = ThreadDataLoader, {"use_thread_workers": True}
    else:
        loader_class, way = DataLoader, {"persistent_workers": job.workers > 0}
    loader = loader_class(
        dataset,
        batch_size=job.batch_size,
        shuffle=job.shuffle,
        num_workers=job.workers,
        collate_fn=pair,
        **way,
    )
    return lambda: loader
