"""Slices in DICOM files, seen through a random window of values, resized and cropped at random."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pydicom
import torch
from torch.utils.data import Dataset
from training import CLASSES, Net, corner, prepared, train

SIDE, CROP = 256, 224


class Slices(Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.dcm"))
        self.held: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> np.ndarray:
        return pydicom.dcmread(self.paths[index]).pixel_array

    def hold(self) -> None:
        self.held = [self.read(index) for index in range(len(self))]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        values = torch.from_numpy(self.held[index] if self.held else self.read(index)).float()
        center, width = random.uniform(0, 80), random.uniform(300, 500)
        window = ((values - (center - width / 2)) / width).clamp(0, 1)
        image = torch.nn.functional.interpolate(window[None, None], (SIDE, SIDE), mode="bilinear")[0]
        left, top = corner((SIDE, SIDE), CROP)
        return image[:, top : top + CROP, left : left + CROP].contiguous(), index % CLASSES


def main() -> None:
    wanted = prepared()
    train(Slices(wanted.data), Net(channels=1), wanted)


if __name__ == "__main__":
    main()
