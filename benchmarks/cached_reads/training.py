"""What the scripts of this folder have in common: plain training, of a network so small that loading decides the pace.

A dataset gives tensors, the label last; bytes are images.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

CLASSES = 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held", action="store_true", help="read everything once, before training")
    parser.add_argument(
        "--digest", action="store_true", help="print every bit of the loss, and a digest of all batches"
    )
    return parser.parse_args()


class Net(nn.Sequential):
    """Logits of images of any size."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__(
            nn.Conv2d(channels, 8, 8, stride=8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        )


def train(dataset: Any, model: nn.Module, wanted: argparse.Namespace, *, shuffle: bool = True) -> None:
    """Train, and print a line an epoch."""
    if wanted.held:
        dataset.hold()
    loader = DataLoader(
        dataset,
        wanted.batch,
        shuffle=shuffle,
        num_workers=wanted.workers,
        persistent_workers=wanted.workers > 0,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(wanted.epochs):
        start, total, count, digest = time.perf_counter(), 0.0, 0, hashlib.blake2b(digest_size=16)
        for batch in loader:
            if wanted.digest:
                for tensor in batch:
                    digest.update(tensor.contiguous().numpy())
            *inputs, labels = batch
            loss = nn.functional.cross_entropy(model(*map(scaled, inputs)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            count += len(labels)
        seconds, mean = time.perf_counter() - start, total / count
        loss_shown = f"{mean.hex()}, digest {digest.hexdigest()}" if wanted.digest else f"{mean:.4f}"
        print(f"epoch {epoch}: {count} samples, {seconds:.4f} s, loss {loss_shown}", flush=True)


def scaled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor


def prepared() -> argparse.Namespace:
    """The arguments, with every generator seeded."""
    wanted = arguments()
    torch.set_num_threads(1)  # the other cores make batches
    torch.manual_seed(wanted.seed)
    random.seed(wanted.seed)
    return wanted


def corner(size: tuple[int, int], crop: int) -> tuple[int, int]:
    """Where a random crop begins, of an image of so many columns and rows."""
    width, height = size
    return random.randint(0, width - crop), random.randint(0, height - crop)
