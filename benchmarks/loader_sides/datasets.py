"""The map-style data sets of the workloads: what torch's DataLoader and hasten are given alike."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from loader_sides.images import LeanPhotos, image_folder
from loader_sides.job import Job


def make_dataset(job: Job) -> Dataset:
    """The data set that `job.data` names."""
    made = {
        "photos": image_folder,
        "xray": image_folder,
        "lean_photos": LeanPhotos,
        "tensors": make_tensors,
        "float_batches": ReadyImages,
        "uneven_spin": lambda job: Uneven(job, sleep=False),
        "uneven_sleep": lambda job: Uneven(job, sleep=True),
        "python_only": PythonOnly,
    }
    return made[job.data](job)


def make_tensors(job: Job) -> TensorDataset:
    """200 000 rows of 64 floats and a label."""
    draw = torch.Generator().manual_seed(0)
    num_rows = job.num_samples or 200_000
    return TensorDataset(torch.randn(num_rows, 64, generator=draw), torch.randint(0, 10, (num_rows,), generator=draw))


class ReadyImages(Dataset):
    """A sample is one of 64 images that lie ready as floats: all that is left is to carry it."""

    def __init__(self, job: Job) -> None:
        self.images = torch.randn(64, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        self.num_samples = job.num_samples or 2048

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index % 64], index % 10


class Uneven(Dataset):
    """One sample in a hundred takes a hundred times as long as the others."""

    SECONDS, SLOW_SECONDS, SLOW_EVERY = 0.5e-3, 50e-3, 100

    def __init__(self, job: Job, *, sleep: bool) -> None:
        self.num_samples, self.sleep = job.num_samples or 3200, sleep

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        seconds = self.SLOW_SECONDS if index % self.SLOW_EVERY == 0 else self.SECONDS
        if self.sleep:
            time.sleep(seconds)
        else:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        return torch.full((16,), float(index)), index % 10


class PythonOnly(Dataset):
    """NumPy and plain Python: some 300 microseconds a sample that hold the interpreter."""

    ROUNDS = 5000

    def __init__(self, job: Job) -> None:
        self.num_samples = job.num_samples or 6400

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        state = index + 1
        for _ in range(self.ROUNDS):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        return np.full((3, 16, 16), state / 0x7FFFFFFF, dtype=np.float32), index % 10
