"""Photographs in a Hugging Face dataset (Arrow, encoded images), resized and cropped at random."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from training import Net, corner, prepared, train

SIDE, CROP = 256, 224


class Photographs(Dataset):
    def __init__(self, folder: Path) -> None:
        self.rows = datasets.load_from_disk(str(folder))
        self.held: list[tuple[Image.Image, int]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> tuple[Image.Image, int]:
        row = self.rows[index]
        return row["image"].convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR), row["label"]

    def hold(self) -> None:
        self.held = [self.read(index) for index in range(len(self))]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = self.held[index] if self.held else self.read(index)
        left, top = corner(image.size, CROP)
        pixels = np.array(image.crop((left, top, left + CROP, top + CROP)))
        return torch.from_numpy(pixels).permute(2, 0, 1), label


def main() -> None:
    wanted = prepared()
    train(Photographs(wanted.data), Net(), wanted)


if __name__ == "__main__":
    main()
