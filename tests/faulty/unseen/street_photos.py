"""Expected finding: slow_decode.

Large JPEG photos are decoded at full size and then shrunk to 112 pixels; the two decoding workers
take both cores and the training on the CPU starves. Decoding at reduced scale repairs it.
"""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

FOLDER = os.path.join(tempfile.gettempdir(), "street_photos_v1")


def make_photos(count=60, size=(1280, 960)):
    os.makedirs(FOLDER, exist_ok=True)
    rng = np.random.default_rng(4)
    for n in range(count):
        path = os.path.join(FOLDER, f"{n:03d}.jpg")
        if os.path.exists(path):
            continue
        coarse = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
        photo = np.asarray(Image.fromarray(coarse).resize(size, Image.BICUBIC)).astype(np.int16)
        photo += rng.integers(-12, 12, photo.shape, dtype=np.int16)
        Image.fromarray(photo.clip(0, 255).astype(np.uint8)).save(path, quality=90)


class StreetPhotos(Dataset):
    def __init__(self, reduced):
        self.paths = sorted(os.path.join(FOLDER, name) for name in os.listdir(FOLDER) if name.endswith(".jpg"))
        self.reduced = reduced
        self.transform = transforms.Compose(
            [
                transforms.Resize((112, 112)),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )

    def __len__(self):
        return 6000

    def __getitem__(self, i):
        with Image.open(self.paths[i % len(self.paths)]) as photo:
            if self.reduced:
                photo.draft("RGB", (160, 120))
            photo = photo.convert("RGB")
        return self.transform(photo), i % 7


def network():
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(32, 96, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(96, 192, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 7),
    ).to(memory_format=torch.channels_last)


def run(steps, fixed):
    torch.set_num_threads(1)
    make_photos()
    loader = DataLoader(StreetPhotos(fixed), batch_size=12, shuffle=True, num_workers=2, persistent_workers=True)
    model, loss_of = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step, began = 0, time.perf_counter()
    while step < steps:
        for photo, kind in loader:
            photo = photo.to(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model(photo), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= steps:
                break
    print(f"{step} steps, last loss {loss.item():.3f}, {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--fixed", action="store_true")
    arguments = parser.parse_args()
    run(arguments.steps, arguments.fixed)
