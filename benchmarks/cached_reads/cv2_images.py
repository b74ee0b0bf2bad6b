"""Photographs read, resized and cropped at random by OpenCV."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset
from training import Net, corner, prepared, train

SIDE, CROP = 256, 224
cv2.setNumThreads(0)  # the workers are the threads


class Photographs(Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        self.held: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> np.ndarray:
        return cv2.resize(cv2.imread(str(self.paths[index])), (SIDE, SIDE))

    def hold(self) -> None:
        self.held = [self.read(index) for index in range(len(self))]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.held[index] if self.held else self.read(index)
        left, top = corner((SIDE, SIDE), CROP)
        crop = np.ascontiguousarray(image[top : top + CROP, left : left + CROP])
        return torch.from_numpy(crop).permute(2, 0, 1), int(self.paths[index].parent.name)


def main() -> None:
    wanted = prepared()
    train(Photographs(wanted.data), Net(), wanted)


if __name__ == "__main__":
    main()
