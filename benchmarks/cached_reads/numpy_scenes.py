"""Scenes of many channels in .npy files of 32 MiB, from which each sample cuts one small crop at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from training import CLASSES, Net, corner, prepared, train

CROP, CROPS = 128, 16  # crops of a scene in an epoch


class Crops(Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.npy"))
        self.held: list[np.ndarray] = []

    def __len__(self) -> int:
        return CROPS * len(self.paths)

    def hold(self) -> None:
        self.held = [np.load(path) for path in self.paths]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = index // CROPS
        scene = self.held[number] if self.held else np.load(self.paths[number])
        _, height, width = scene.shape
        left, top = corner((width, height), CROP)
        return torch.from_numpy(scene[:, top : top + CROP, left : left + CROP].copy()), number % CLASSES


def main() -> None:
    wanted = prepared()
    crops = Crops(wanted.data)
    train(crops, Net(channels=8), wanted)


if __name__ == "__main__":
    main()
