"""An optimised pipeline, before it was optimised: photographs sorted into classes, and the F1 score printed.

Its story is a list of switches, each off in this script, on purpose: batches of 32, two workers that are started anew for
each epoch, nothing pinned, copies that wait, full precision, gradients cleared the slow way, cudnn not tuned, and a
progress bar that asks for the loss in every step.

    python classify.py --data DIR [--images N] [--size 64] [--batch-size 32] [--workers 2] [--epochs 4]

`folders.py` beside it tells which folders it reads; every photograph has one class. One that cannot be decoded ends the run
and is named: wrong input is one line on stderr and exit code 2. Needs torch, numpy and Pillow.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from folders import Images, choose, open_image, read_classes
from options import at_least, told_in_one_line
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


def to_tensor(image: Image.Image) -> torch.Tensor:
    """An image's pixels as (3, height, width) float32."""
    return torch.from_numpy((np.asarray(image, dtype=np.float32) - 128) / 64).permute(2, 0, 1).contiguous()


def mirrored_at_random(image: Image.Image) -> torch.Tensor:
    """The same, and every other image mirrored."""
    if torch.rand(()) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return to_tensor(image)


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """A photograph as (3, size, size) float32 and its class."""

    def __init__(
        self, images: Images, part: list[int], *, size: int, transform: Callable[[Image.Image], torch.Tensor]
    ) -> None:
        self.paths = [images.paths[i] for i in part]
        self.classes = [images.targets[i].index(1.0) for i in part]
        self.size, self.transform = size, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = open_image(self.paths[index]).convert("RGB")
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return self.transform(image), self.classes[index]


class Residual(nn.Module):
    """Two convolutions, added to what came in; the first one may halve the side."""

    def __init__(self, narrow: int, wide: int, *, stride: int) -> None:
        super().__init__()
        first = nn.Conv2d(narrow, wide, 3, stride=stride, padding=1, bias=False)
        second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.path = nn.Sequential(first, nn.BatchNorm2d(wide), nn.ReLU(), second, nn.BatchNorm2d(wide))
        self.beside = nn.Conv2d(narrow, wide, 1, stride=stride, bias=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(N, narrow, H, W) to (N, wide, H / stride, W / stride)."""
        return torch.relu(self.path(input) + self.beside(input))


def make_model(num_classes: int) -> nn.Module:
    """A small residual net of 0.3 million weights."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [Residual(narrow, wide, stride=2) for narrow, wide in ((16, 32), (32, 64), (64, 128))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))


def f1_score(guessed: torch.Tensor, classes: torch.Tensor, num_classes: int) -> float:
    """The mean of the classes' F1 scores, of those that occur."""
    scores = []
    for label in range(num_classes):
        hits = ((guessed == label) & (classes == label)).sum().item()
        named, there = (guessed == label).sum().item(), (classes == label).sum().item()
        if there:
            scores.append(2 * hits / (named + there))
    return sum(scores) / len(scores)


def train(options: argparse.Namespace) -> None:
    """Every step on the progress bar, then the F1 score on the validation part."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = read_classes(options.data)
    parts = choose(images, num_images=options.images)
    train_set = Photographs(images, parts[0], size=options.size, transform=mirrored_at_random)
    val_set = Photographs(images, parts[1], size=options.size, transform=to_tensor)
    batch_size = min(options.batch_size, len(train_set))
    train_loader = DataLoader(train_set, batch_size, shuffle=True, num_workers=options.workers, drop_last=True)
    val_loader = DataLoader(val_set, batch_size, num_workers=options.workers)
    model = make_model(len(images.labels)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"Device: {device}\nNumber of images: {len(train_set) + len(val_set)}", flush=True)
    for epoch in range(options.epochs):
        model.train()
        for step, (batch, classes) in enumerate(train_loader, start=1):
            batch, classes = batch.to(device), classes.to(device)
            optimizer.zero_grad(set_to_none=False)
            loss = criterion(model(batch), classes)
            loss.backward()
            optimizer.step()
            bar = "#" * (20 * step // len(train_loader))
            sys.stderr.write(f"\rEpoch {epoch + 1}: {bar:20s} {step}/{len(train_loader)} loss {loss.item():.4f}")
            sys.stderr.flush()
        sys.stderr.write("\n")
    model.eval()
    with torch.no_grad():
        guessed = torch.cat([model(batch.to(device)).argmax(1).cpu() for batch, _ in val_loader])
    score = f1_score(guessed, torch.tensor(val_set.classes), len(images.labels))
    print(f"F1: {score:.4f} on {len(val_set)} images")


def main() -> None:
    """Read the command line; say what is wrong with the data in one line."""
    parser = argparse.ArgumentParser(description="Photographs sorted into classes.")
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs (see folders.py)")
    parser.add_argument("--images", type=at_least(8), help="how many of them (all)")
    parser.add_argument("--size", type=at_least(32), default=64, help="side the network sees (64)")
    parser.add_argument("--batch-size", type=at_least(2), default=32, help="photographs a step (32)")
    parser.add_argument("--workers", type=at_least(0), default=2, help="loader workers (2)")
    parser.add_argument("--epochs", type=at_least(1), default=4)
    with told_in_one_line():
        train(parser.parse_args())


if __name__ == "__main__":
    main()
