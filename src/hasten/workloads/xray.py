"""The X-ray speed test: one epoch of DenseNet-121 on chest films, several findings to a film.

Its story: a laboratory trains on 112,120 films of 1024 x 1024 with 15 labels, and wonders whether its
machine is the bottleneck. On a GPU it is: a film takes longer to decode than to learn from. (So it is on a
CPU where the network sees 64 pixels.) This script is written as theirs was, on purpose: Pillow decodes the
whole film, grey becomes RGB before it is shrunk, two workers hand over float32, and the network runs in full
precision, channels first.

    python xray.py --data DIR [--images 192] [--size 64] [--batch-size 32] [--workers 2] [--epochs 1]

`--draws` makes an epoch as long as theirs on few films: so many are drawn, with replacement.
`folders.py` beside it tells which folders it reads. A film that cannot be decoded ends the run and is named:
wrong input is one line on stderr and exit code 2. Needs torch, numpy and Pillow.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from folders import choose, open_image, read_images
from options import at_least, told_in_one_line
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """An image's pixels, normalised, as (3, size, size) float32."""
    pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def mirrored_at_random(image: Image.Image) -> torch.Tensor:
    """The same, and every other film mirrored."""
    if torch.rand(()) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return to_tensor(image)


class FilmDataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A film as (3, size, size) float32 and its labels as (num_labels,) float32."""

    def __init__(
        self, paths: np.ndarray, targets: np.ndarray, *, size: int, transform: Callable[[Image.Image], torch.Tensor]
    ) -> None:
        self.paths, self.targets, self.size, self.transform = paths, targets, size, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = open_image(self.paths[index]).convert("RGB")
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return self.transform(image), torch.from_numpy(self.targets[index])


def norm_relu(width: int) -> list[nn.Module]:
    """What stands before every convolution of a DenseNet."""
    return [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]


class DenseLayer(nn.Sequential):
    """A bottleneck to 4 x growth maps, then `growth` new ones, put beside what came in."""

    def __init__(self, width: int, growth: int) -> None:
        squeeze = nn.Conv2d(width, 4 * growth, 1, bias=False)
        grow = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        super().__init__(*norm_relu(width), squeeze, *norm_relu(4 * growth), grow)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(N, width, H, W) to (N, width + growth, H, W)."""
        return torch.cat([input, super().forward(input)], dim=1)


def densenet121(num_labels: int, growth: int = 32) -> nn.Module:
    """DenseNet-121 (Huang et al. 2017): blocks of 6, 12, 24 and 16 layers; 6,953,856 weights and the head."""
    width = 64
    layers = [nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), *norm_relu(width)]
    layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    for depth in (6, 12, 24, 16):
        if depth != 6:  # between two blocks: half the maps, half the side
            layers += [*norm_relu(width), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
        layers += [DenseLayer(width + k * growth, growth) for k in range(depth)]
        width += depth * growth
    layers += [*norm_relu(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_labels)]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model


def mean_auroc(scores: np.ndarray, targets: np.ndarray) -> float:
    """Mean over the labels that occur and do not always occur; nan when there is none."""
    areas = []
    for score, target in zip(scores.T, targets.T > 0.5):
        if target.any() and not target.all():
            above = score[target][:, None] - score[~target][None, :]
            areas.append(np.mean((above > 0) + 0.5 * (above == 0)))
    return float(np.mean(areas)) if areas else float("nan")


def train(options: argparse.Namespace) -> None:
    """One epoch, or several, then the score on the validation part."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, num_images = (224, 2048) if device.type == "cuda" else (64, 192)
    films = read_images(options.data)
    parts = choose(films, num_images=options.images or num_images)
    size = options.size or size
    batch_size = min(options.batch_size, len(parts[0]))
    print("Device:", device)
    print("Number of images:", len(films.paths))
    if films.num_missing:
        print("Missing images, left out:", films.num_missing)
    print("Number of labels:", len(films.labels), flush=True)

    paths, targets = np.array(films.paths), np.array(films.targets, dtype=np.float32)
    train_set = FilmDataset(paths[parts[0]], targets[parts[0]], size=size, transform=mirrored_at_random)
    val_set = FilmDataset(paths[parts[1]], targets[parts[1]], size=size, transform=to_tensor)
    order = RandomSampler(train_set, replacement=options.draws is not None, num_samples=options.draws)
    train_loader = DataLoader(train_set, batch_size, sampler=order, num_workers=options.workers, drop_last=True)
    val_loader = DataLoader(val_set, batch_size, num_workers=options.workers)
    model = densenet121(len(films.labels)).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        model.train()
        for step, (images, targets) in enumerate(train_loader):
            images, targets = images.to(device), targets.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), targets)
            loss.backward()
            optimizer.step()
            if step % 10 == 0 or step == len(train_loader) - 1:
                print(f"epoch {epoch + 1} step {step + 1} loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        outputs = [(model(images.to(device)).cpu(), targets) for images, targets in val_loader]
    scores, targets = (torch.cat(column).numpy() for column in zip(*outputs))
    print(f"Mean AUROC: {mean_auroc(scores, targets):.3f} on {len(val_set)} images")


def main() -> None:
    """Read the command line; say what is wrong with the data in one line."""
    parser = argparse.ArgumentParser(description="One epoch of DenseNet-121 on chest films.")
    parser.add_argument("--data", type=Path, required=True, help="folder of films (see folders.py)")
    parser.add_argument("--images", type=at_least(8), help="how many of them (CPU 192, CUDA 2048)")
    parser.add_argument("--size", type=at_least(32), help="side the network sees (CPU 64, CUDA 224)")
    parser.add_argument("--batch-size", type=at_least(2), default=32, help="films a step (32)")
    parser.add_argument("--workers", type=at_least(0), default=2, help="loader workers (2)")
    parser.add_argument("--epochs", type=at_least(1), default=1)
    parser.add_argument("--draws", type=at_least(1), help="films drawn an epoch, with replacement (each once)")
    with told_in_one_line():
        train(parser.parse_args())


if __name__ == "__main__":
    main()
