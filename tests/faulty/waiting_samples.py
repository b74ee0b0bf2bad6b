"""Expected finding: waiting_samples.

Each image is asked of a server that answers after some milliseconds, by two workers that hold one request each; fixed,
sixteen workers wait at the same time.
"""

import io
import sys
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
ANSWER_SECONDS = 0.012


class Bucket:
    """A store of objects, a network away."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.objects = []
        for _ in range(64):
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (48, 48, 3), dtype=np.uint8)).save(buffer, format="PNG")
            self.objects.append(buffer.getvalue())

    def get(self, key):
        time.sleep(ANSWER_SECONDS)
        return self.objects[key % len(self.objects)]


class RemoteImages(Dataset):
    def __init__(self):
        self.bucket = Bucket()

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.bucket.get(index)))
        return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1), index % 10


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(RemoteImages(), 16, shuffle=True, num_workers=16 if FIXED else 2)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    model(torch.zeros(1, 3, 48, 48))
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
