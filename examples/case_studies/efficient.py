"""Train a small net on small images with every debugging aid left on and the plainest recipe: how soon is it as accurate?

Anomaly detection is on, gradients are set to zero in place, validation records them, cuDNN may not look for its fastest
algorithms, and SGD keeps one constant learning rate. All of it is on purpose.

    python efficient.py --data DIR [--images N] [--size 32] [--batch-size 64] [--epochs 12] [--rate 0.02]

Each epoch prints the accuracy on the validation images. DIR holds class folders. Needs torch, numpy and Pillow.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from image_folder import image_folder
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load(samples, size):
    """Return all images in memory, (N, 3, size, size) float32, with their classes, (N,) int64."""
    images = [Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BILINEAR) for path, _ in samples]
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)
    return TensorDataset((pixels.float() - 128) / 64, torch.tensor([target for _, target in samples]))


def block(narrow, wide):
    """Two convolutions, then half the side."""
    first, second = nn.Conv2d(narrow, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
    return [first, nn.BatchNorm2d(wide), nn.ReLU(), second, nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]


def main():
    parser = argparse.ArgumentParser(description="Train a small net on small images.")
    parser.add_argument("--data", type=Path, required=True, help="folder of images (see image_folder.py)")
    parser.add_argument("--images", type=int, help="how many of them (all)")
    parser.add_argument("--size", type=int, default=32, help="side of what the network sees")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, val, labels = image_folder(args.data, args.images)
    loader = DataLoader(load(train, args.size), min(args.batch_size, len(train)), shuffle=True, drop_last=True)
    val_loader = DataLoader(load(val, args.size), 4 * args.batch_size)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(labels))]
    model = nn.Sequential(*block(3, 16), *block(16, 32), *block(32, 64), *head).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
    print(f"Device: {device}\nNumber of images: {len(train) + len(val)}", flush=True)
    for epoch in range(args.epochs):
        model.train()
        for images, targets in loader:
            images, targets = images.to(device), targets.to(device)
            optimizer.zero_grad(set_to_none=False)
            loss = criterion(model(images), targets)
            loss.backward()
            optimizer.step()
        model.eval()
        correct = [(model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in val_loader]
        print(f"epoch {epoch + 1} accuracy {sum(correct) / len(val):.4f}", flush=True)


if __name__ == "__main__":
    main()
