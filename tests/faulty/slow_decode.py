"""Expected finding: slow_decode.

Photographs of 1280 x 960 are decoded by Pillow to train on 64 x 64 pixels; fixed, the files hold the images
at the size the model trains on.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
SIZE = (64, 64) if MENDED else (1280, 960)
FOLDER = Path(tempfile.gettempdir()) / f"hasten-faulty-slow_decode-{SIZE[0]}x{SIZE[1]}"


def make_photos():
    FOLDER.mkdir(exist_ok=True)
    for number in range(32):
        path = FOLDER / f"{number:03d}.jpg"
        if not path.exists():
            rng = np.random.default_rng(number)
            coarse = Image.fromarray(rng.integers(0, 256, (120, 160, 3), dtype=np.uint8))
            part = path.with_suffix(f".{os.getpid()}")
            coarse.resize(SIZE, Image.BICUBIC).save(part, format="JPEG", quality=92)
            part.replace(path)


class Photos(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        image = Image.open(self.paths[index % len(self.paths)]).convert("RGB")
        image = image.resize((64, 64), Image.NEAREST)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(512, 10)

    def forward(self, images):
        return self.head(self.features(images.float() / 255))


def main():
    make_photos()
    torch.set_num_threads(1)
    loader = DataLoader(Photos(FOLDER), batch_size=16, shuffle=True, num_workers=2, drop_last=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    done = 0
    for epoch in range(1000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done >= STEPS:
                return
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
