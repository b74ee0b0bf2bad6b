"""Train DenseNet-121 on chest X-ray images: is decoding them the bottleneck?

A laboratory trains on 112,120 images of 1024 x 1024 pixels with 15 labels, and wonders whether its machine is too slow. On
a GPU an image takes longer to decode than to learn from; so it does on a CPU where the network sees 64 pixels. This script
is written as theirs was: Pillow decodes the whole image and makes RGB of gray before it shrinks it, two workers return
float32, and the network runs in full precision, channels first.

    python xray.py --data DIR [--images 192] [--size 64] [--batch-size 32] [--workers 2] [--epochs 1] [--draws N]

DIR holds images and a labels.csv, or class folders. `--draws` makes an epoch as long as theirs on few images: so many are
drawn, with replacement. Needs torch, numpy and Pillow.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from image_folder import labels_file
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class XrayImages(Dataset):
    """An image as (3, size, size) float32, mirrored at random in training, and its labels as (num_labels,) float32."""

    def __init__(self, samples, size, training):
        self.samples, self.size, self.training = samples, size, training

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        image = Image.open(path).convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        if self.training and torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), torch.tensor(target)


def norm_relu(width):
    """Return what precedes every convolution of a DenseNet."""
    return [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]


class DenseLayer(nn.Sequential):
    """A bottleneck of 4 x growth channels, then `growth` new ones, concatenated to the input."""

    def __init__(self, width, growth):
        squeeze = nn.Conv2d(width, 4 * growth, 1, bias=False)
        grow = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        super().__init__(*norm_relu(width), squeeze, *norm_relu(4 * growth), grow)

    def forward(self, input):
        return torch.cat([input, super().forward(input)], dim=1)


def densenet121(num_labels, growth=32):
    """DenseNet-121 (Huang et al. 2017): blocks of 6, 12, 24 and 16 layers; 6,953,856 weights and the head."""
    width = 64
    layers = [nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), *norm_relu(width)]
    layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    for depth in (6, 12, 24, 16):
        if depth != 6:  # between two blocks: half the channels, half the side
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


def mean_auroc(scores, targets):
    """Return the mean over the labels that some images have and others do not; nan where there is none."""
    areas = []
    for score, target in zip(scores.T, targets.T > 0.5):
        if target.any() and not target.all():
            above = score[target][:, None] - score[~target][None, :]
            areas.append(np.mean((above > 0) + 0.5 * (above == 0)))
    return float(np.mean(areas)) if areas else float("nan")


def main():
    parser = argparse.ArgumentParser(description="Train DenseNet-121 on chest X-ray images.")
    parser.add_argument("--data", type=Path, required=True, help="folder of images (see image_folder.py)")
    parser.add_argument("--images", type=int, help="how many of them (CPU 192, CUDA 2048)")
    parser.add_argument("--size", type=int, help="side of what the network sees (CPU 64, CUDA 224)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--draws", type=int, help="images drawn in an epoch, with replacement (each once)")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, num_images = (224, 2048) if device.type == "cuda" else (64, 192)
    size, num_images = args.size or size, args.images or num_images
    train, val, labels = labels_file(args.data, num_images)
    print("Device:", device)
    print("Number of images:", len(train) + len(val))
    print("Number of labels:", len(labels), flush=True)

    train_set, val_set = XrayImages(train, size, training=True), XrayImages(val, size, training=False)
    sampler = RandomSampler(train_set, replacement=args.draws is not None, num_samples=args.draws)
    batch_size = min(args.batch_size, len(train))
    train_loader = DataLoader(train_set, batch_size, sampler=sampler, num_workers=args.workers, drop_last=True)
    val_loader = DataLoader(val_set, batch_size, num_workers=args.workers)
    model = densenet121(len(labels)).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
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
    print(f"Mean AUROC: {mean_auroc(scores, targets):.3f} on {len(val)} images")


if __name__ == "__main__":
    main()
