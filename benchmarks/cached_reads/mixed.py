"""A photograph read by Pillow, its mask by OpenCV and a vector of features by NumPy, for every sample."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from training import CLASSES, Net, corner, prepared, train

SIDE, CROP = 256, 224
FEATURES = 512
cv2.setNumThreads(0)  # the workers are the threads

Parts = tuple[Image.Image, np.ndarray, np.ndarray]


class Scenes(Dataset):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = sorted(path.stem for path in (folder / "photos").glob("*.jpg"))
        self.held: list[Parts] = []

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> Parts:
        name = self.names[index]
        photograph = Image.open(self.folder / "photos" / f"{name}.jpg").convert("RGB")
        mask = cv2.imread(str(self.folder / "masks" / f"{name}.png"), cv2.IMREAD_GRAYSCALE)
        return (
            photograph.resize((SIDE, SIDE), Image.Resampling.BILINEAR),
            cv2.resize(mask, (SIDE, SIDE), interpolation=cv2.INTER_NEAREST),
            np.load(self.folder / "features" / f"{name}.npy"),
        )

    def hold(self) -> None:
        self.held = [self.read(index) for index in range(len(self))]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        photograph, mask, features = self.held[index] if self.held else self.read(index)
        left, top = corner((SIDE, SIDE), CROP)
        pixels = np.array(photograph.crop((left, top, left + CROP, top + CROP)))
        part = np.ascontiguousarray(mask[None, top : top + CROP, left : left + CROP])
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        return image, torch.from_numpy(part), torch.from_numpy(features), index % CLASSES


class Fused(nn.Module):
    """Logits of an image with its mask, and of a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.image = Net(channels=4)
        self.vector = nn.Linear(FEATURES, CLASSES)

    def forward(self, image: torch.Tensor, mask: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return self.image(torch.cat((image, mask), 1)) + self.vector(features)


def main() -> None:
    wanted = prepared()
    train(Scenes(wanted.data), Fused(), wanted)


if __name__ == "__main__":
    main()
