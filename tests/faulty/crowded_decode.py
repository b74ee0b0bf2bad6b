"""Expected finding: slow_decode.

Batches are always ready, but the two workers that decode large photographs take the cores that training needs; fixed, the
photographs are stored at the size that the model sees.
"""

import io
import sys

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
SIZE = 96


class Photographs(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        side = SIZE if FIXED else 800
        self.files = []
        for _ in range(40):
            image = Image.fromarray(rng.integers(0, 256, (60, 60, 3), dtype=np.uint8)).resize(
                (side, side), Image.BICUBIC
            )
            buffer = io.BytesIO()
            image.save(buffer, format="JPEG", quality=85)
            self.files.append(buffer.getvalue())

    def __len__(self):
        return 40_000

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB").resize((SIZE, SIZE))
        return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1), index % 8


def main():
    torch.manual_seed(0)
    loader = DataLoader(Photographs(), 16, shuffle=True, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 8),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
