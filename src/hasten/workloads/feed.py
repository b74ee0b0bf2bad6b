"""Feeding the model: a convolutional net on photographs, fed as everybody feeds their first one.

Its story: "one of the main bottlenecks in training time is how data is handled". This script reads, decodes and shrinks each
photograph in the training process, between two steps: no workers, nothing fetched ahead, so the model waits while the next
batch is made. Epochs are timed by hand. With `--grow` the batch is doubled after each epoch, until memory ends.

    python feed.py --data DIR [--images N] [--size 112] [--batch-size 32] [--epochs 3] [--grow]

`folders.py` beside it tells which folders it reads; every photograph has one class. One that cannot be decoded ends the run
and is named: wrong input is one line on stderr and exit code 2. Needs torch, numpy and Pillow.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from folders import Images, choose, open_image, read_classes
from options import at_least, told_in_one_line
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


def shrink(image: Image.Image, side: int) -> Image.Image:
    """The image with its short side `side` pixels long."""
    scale = side / min(image.size)
    width, height = (max(side, round(scale * length)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


class Cut:
    """An image's square of `size` pixels, as (3, size, size) float32: from anywhere and perhaps mirrored, or the middle."""

    def __init__(self, size: int, *, training: bool) -> None:
        self.size, self.training = size, training

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Of an image at least `size` pixels wide and high."""
        left, top = ((length - self.size) // 2 for length in image.size)
        if self.training:
            left, top = (int(torch.randint(length - self.size + 1, ())) for length in image.size)
        pixels = np.asarray(image.crop((left, top, left + self.size, top + self.size)), dtype=np.float32)
        tensor = torch.from_numpy((pixels - 128) / 64).permute(2, 0, 1)
        if self.training and torch.rand(()) < 0.5:
            tensor = tensor.flip(2)
        return tensor.contiguous()


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """A photograph as (3, size, size) float32 and its class."""

    def __init__(self, images: Images, part: list[int], *, side: int, transform: Cut) -> None:
        self.paths = [images.paths[i] for i in part]
        self.classes = [images.targets[i].index(1.0) for i in part]
        self.side, self.transform = side, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = shrink(open_image(self.paths[index]).convert("RGB"), self.side)
        return self.transform(image), self.classes[index]


def block(narrow: int, wide: int) -> list[nn.Module]:
    """Two convolutions, the first halving the side."""
    first, second = nn.Conv2d(narrow, wide, 3, stride=2, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
    return [first, nn.BatchNorm2d(wide), nn.ReLU(inplace=True), second, nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]


def make_model(num_classes: int) -> nn.Module:
    """A plain convolutional net of 1.2 million weights."""
    blocks = block(3, 32) + block(32, 64) + block(64, 128) + block(128, 256)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, num_classes))


def train(options: argparse.Namespace) -> None:
    """Every epoch with its time, then the accuracy on the validation part."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = read_classes(options.data)
    train_part, val_part = choose(images, num_images=options.images)
    side = options.size * 8 // 7
    train_set = Photographs(images, train_part, side=side, transform=Cut(options.size, training=True))
    val_set = Photographs(images, val_part, side=side, transform=Cut(options.size, training=False))
    model = make_model(len(images.labels)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batch_size = min(options.batch_size, len(train_set))
    print(f"Device: {device}\nNumber of images: {len(train_part) + len(val_part)}", flush=True)
    for epoch in range(options.epochs):
        loader = DataLoader(train_set, batch_size, shuffle=True, drop_last=True)
        start, total = time.perf_counter(), 0.0
        for batch, classes in loader:
            batch, classes = batch.to(device), classes.to(device)
            optimizer.zero_grad()
            loss = criterion(model(batch), classes)
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        took = time.perf_counter() - start
        print(f"Epoch {epoch + 1} took {took:.2f} s, loss {float(total):.4f}, batch {batch_size}", flush=True)
        if options.grow:
            batch_size = min(2 * batch_size, len(train_set))
    model.eval()
    with torch.no_grad():
        right = [(model(b.to(device)).argmax(1).cpu() == c).sum().item() for b, c in DataLoader(val_set, 32)]
    print(f"Accuracy: {sum(right) / len(val_set):.3f} on {len(val_set)} images")


def main() -> None:
    """Read the command line; say what is wrong with the data in one line."""
    parser = argparse.ArgumentParser(description="A convolutional net on photographs, fed by hand.")
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs (see folders.py)")
    parser.add_argument("--images", type=at_least(8), help="how many of them (all)")
    parser.add_argument("--size", type=at_least(32), default=112, help="side the network sees (112)")
    parser.add_argument("--batch-size", type=at_least(2), default=32, help="photographs a step (32)")
    parser.add_argument("--epochs", type=at_least(1), default=3)
    parser.add_argument("--grow", action="store_true", help="double the batch after each epoch")
    with told_in_one_line():
        train(parser.parse_args())


if __name__ == "__main__":
    main()
