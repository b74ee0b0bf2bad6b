"""Train a convolutional net on photographs that are read between two steps: who waits for whom?

"One of the main bottlenecks in training time is how data is handled." This script reads, decodes and shrinks each
photograph in the training process: there are no workers and no prefetching, so the model waits while the next batch is
made. Epochs are timed by hand.

    python feed.py --data DIR [--images N] [--size 112] [--batch-size 32] [--epochs 3]

DIR holds class folders. Needs torch, numpy and Pillow.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from image_folder import image_folder
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """A square of a photograph as (3, size, size) float32, and its class.

    In training it is cut out anywhere and mirrored at random, otherwise it is the middle.
    """

    def __init__(self, samples, size, training):
        self.samples, self.size, self.training = samples, size, training

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        image = shrink(Image.open(path).convert("RGB"), self.size * 8 // 7)
        left, top = ((length - self.size) // 2 for length in image.size)
        if self.training:
            left, top = (int(torch.randint(length - self.size + 1, ())) for length in image.size)
        pixels = np.asarray(image.crop((left, top, left + self.size, top + self.size)), dtype=np.float32)
        tensor = torch.from_numpy((pixels - 128) / 64).permute(2, 0, 1)
        if self.training and torch.rand(()) < 0.5:
            tensor = tensor.flip(2)
        return tensor.contiguous(), target


def shrink(image, side):
    """Return the image with a short side of `side` pixels."""
    scale = side / min(image.size)
    width, height = (max(side, round(scale * length)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def block(narrow, wide):
    """Two convolutions, of which the first halves the side."""
    first, second = nn.Conv2d(narrow, wide, 3, stride=2, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
    return [first, nn.BatchNorm2d(wide), nn.ReLU(inplace=True), second, nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]


def make_model(num_classes):
    """A plain convolutional net of 1.2 million weights."""
    blocks = block(3, 32) + block(32, 64) + block(64, 128) + block(128, 256)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, num_classes))


def main():
    parser = argparse.ArgumentParser(description="Train a convolutional net on photographs.")
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs (see image_folder.py)")
    parser.add_argument("--images", type=int, help="how many of them (all)")
    parser.add_argument("--size", type=int, default=112, help="side of what the network sees")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, val, labels = image_folder(args.data, args.images)
    print(f"Device: {device}\nNumber of images: {len(train) + len(val)}", flush=True)
    train_set, val_set = Photos(train, args.size, training=True), Photos(val, args.size, training=False)
    model = make_model(len(labels)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batch_size = min(args.batch_size, len(train))
    for epoch in range(args.epochs):
        loader = DataLoader(train_set, batch_size, shuffle=True, drop_last=True)
        start, total = time.perf_counter(), 0.0
        for images, targets in loader:
            images, targets = images.to(device), targets.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), targets)
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        took = time.perf_counter() - start
        print(f"Epoch {epoch + 1} took {took:.2f} s, loss {float(total):.4f}, batch {batch_size}", flush=True)
    model.eval()
    with torch.no_grad():
        correct = [(model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in DataLoader(val_set, 32)]
    print(f"Accuracy: {sum(correct) / len(val):.3f} on {len(val)} images")


if __name__ == "__main__":
    main()
