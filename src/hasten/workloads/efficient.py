"""Efficient training: a small net on small images, with every debugging aid left on and the plainest recipe.

Its story lists what slows a training down and what makes it converge later; this script has it all, on purpose: anomaly
detection is on, gradients are set to zero in place, validation records them, cudnn may not look for its fastest
algorithm, and SGD goes on at one constant rate.

    python efficient.py --data DIR [--images N] [--size 32] [--batch-size 64] [--epochs 12] [--rate 0.02]

Each epoch prints the accuracy on the validation part. `folders.py` beside it tells which folders it reads; every image
has one class. One that cannot be decoded ends the run and is named: wrong input is one line on stderr and exit code 2.
Needs torch, numpy and Pillow.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from folders import Images, choose, open_image, read_classes
from options import at_least, told_in_one_line
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load(images: Images, part: list[int], *, size: int) -> TensorDataset:
    """All images of a part in memory, (N, 3, size, size) float32, with their classes, (N,) int64."""
    shrunk = [
        open_image(images.paths[i]).convert("RGB").resize((size, size), Image.Resampling.BILINEAR) for i in part
    ]
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in shrunk])).permute(0, 3, 1, 2)
    classes = torch.tensor([images.targets[i].index(1.0) for i in part])
    return TensorDataset((pixels.float() - 128) / 64, classes)


def block(narrow: int, wide: int) -> list[nn.Module]:
    """Two convolutions, then half the side."""
    first, second = nn.Conv2d(narrow, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
    return [first, nn.BatchNorm2d(wide), nn.ReLU(), second, nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]


def train(options: argparse.Namespace) -> None:
    """Every epoch with the accuracy on the validation part."""
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = read_classes(options.data)
    parts = choose(images, num_images=options.images)
    train_set, val_set = (load(images, part, size=options.size) for part in parts)
    loader = DataLoader(train_set, min(options.batch_size, len(parts[0])), shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, 4 * options.batch_size)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(images.labels))]
    model = nn.Sequential(*block(3, 16), *block(16, 32), *block(32, 64), *head).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.rate)
    print(f"Device: {device}\nNumber of images: {len(train_set) + len(val_set)}", flush=True)
    for epoch in range(options.epochs):
        model.train()
        for batch, classes in loader:
            batch, classes = batch.to(device), classes.to(device)
            optimizer.zero_grad(set_to_none=False)
            loss = criterion(model(batch), classes)
            loss.backward()
            optimizer.step()
        model.eval()
        right = [(model(b.to(device)).argmax(1).cpu() == c).sum().item() for b, c in val_loader]
        print(f"epoch {epoch + 1} accuracy {sum(right) / len(val_set):.4f}", flush=True)


def main() -> None:
    """Read the command line; say what is wrong with the data in one line."""
    parser = argparse.ArgumentParser(description="A small net on small images, slowed down by all that is left on.")
    parser.add_argument("--data", type=Path, required=True, help="folder of images (see folders.py)")
    parser.add_argument("--images", type=at_least(8), help="how many of them (all)")
    parser.add_argument("--size", type=at_least(16), default=32, help="side the network sees (32)")
    parser.add_argument("--batch-size", type=at_least(2), default=64, help="images a step (64)")
    parser.add_argument("--epochs", type=at_least(1), default=12)
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate (0.02)")
    with told_in_one_line():
        train(parser.parse_args())


if __name__ == "__main__":
    main()
