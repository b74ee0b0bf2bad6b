"""Sort photographs into classes with every switch off: what does each switch gain?

Batches of 32, two workers that are started anew for each epoch, no pinned memory, blocking copies, full precision,
gradients set to zero in place, no cuDNN tuning, and a progress bar that asks for the loss in every step. All of it is on
purpose.

    python classify.py --data DIR [--images N] [--size 64] [--batch-size 32] [--workers 2] [--epochs 4]

Prints the F1 score at the end. DIR holds class folders. Needs torch, numpy and Pillow.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from image_folder import image_folder
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """A photograph as (3, size, size) float32, mirrored at random in training, and its class."""

    def __init__(self, samples, size, training):
        self.samples, self.size, self.training = samples, size, training

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        image = Image.open(path).convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        if self.training and torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy((np.asarray(image, dtype=np.float32) - 128) / 64)
        return pixels.permute(2, 0, 1).contiguous(), target


class Residual(nn.Module):
    """Two convolutions, added to a projection of their input; the first may halve the side."""

    def __init__(self, narrow, wide, stride):
        super().__init__()
        first = nn.Conv2d(narrow, wide, 3, stride=stride, padding=1, bias=False)
        second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.path = nn.Sequential(first, nn.BatchNorm2d(wide), nn.ReLU(), second, nn.BatchNorm2d(wide))
        self.shortcut = nn.Conv2d(narrow, wide, 1, stride=stride, bias=False)

    def forward(self, input):
        return torch.relu(self.path(input) + self.shortcut(input))


def make_model(num_classes):
    """A small residual net of 0.3 million weights."""
    layers = [nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [Residual(narrow, wide, stride=2) for narrow, wide in ((16, 32), (32, 64), (64, 128))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))


def f1_score(predicted, targets, num_classes):
    """Return the mean of the F1 scores of the classes that occur."""
    scores = []
    for label in range(num_classes):
        hits = ((predicted == label) & (targets == label)).sum().item()
        num_predicted, num_targets = (predicted == label).sum().item(), (targets == label).sum().item()
        if num_targets:
            scores.append(2 * hits / (num_predicted + num_targets))
    return sum(scores) / len(scores)


def main():
    parser = argparse.ArgumentParser(description="Sort photographs into classes.")
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs (see image_folder.py)")
    parser.add_argument("--images", type=int, help="how many of them (all)")
    parser.add_argument("--size", type=int, default=64, help="side of what the network sees")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, val, labels = image_folder(args.data, args.images)
    train_set, val_set = Photos(train, args.size, training=True), Photos(val, args.size, training=False)
    batch_size = min(args.batch_size, len(train))
    train_loader = DataLoader(train_set, batch_size, shuffle=True, num_workers=args.workers, drop_last=True)
    val_loader = DataLoader(val_set, batch_size, num_workers=args.workers)
    model = make_model(len(labels)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"Device: {device}\nNumber of images: {len(train) + len(val)}", flush=True)
    for epoch in range(args.epochs):
        model.train()
        for step, (images, targets) in enumerate(train_loader, start=1):
            images, targets = images.to(device), targets.to(device)
            optimizer.zero_grad(set_to_none=False)
            loss = criterion(model(images), targets)
            loss.backward()
            optimizer.step()
            bar = "#" * (20 * step // len(train_loader))
            sys.stderr.write(f"\rEpoch {epoch + 1}: {bar:20s} {step}/{len(train_loader)} loss {loss.item():.4f}")
            sys.stderr.flush()
        sys.stderr.write("\n")
    model.eval()
    with torch.no_grad():
        predicted = torch.cat([model(images.to(device)).argmax(1).cpu() for images, _ in val_loader])
    score = f1_score(predicted, torch.tensor([target for _, target in val]), len(labels))
    print(f"F1: {score:.4f} on {len(val)} images")


if __name__ == "__main__":
    main()
