"""Train an SRResNet to enlarge photographs four times, from a set that does not fit in memory: what does a cache need?

There are 13 GB for training and 6 GB for validation, every epoch "ALWAYS reloads it from disk and redoes some
preprocessing", and the second epoch takes as long as the first. The author then kept every sample in a dictionary
(`--ram-cache`): the samples took two to three times the memory of their files, and the machine swapped to a standstill.

    python superres.py --data DIR [--images N] [--repeats 1] [--epochs 3] [--blocks 4] [--channels 32] [--ram-cache]

The paper's network (Ledig et al. 2017) has 16 blocks of 64 channels; the defaults are what two cores can train. `--repeats`
counts each file so many times, so that a few photographs make a large set. DIR holds images anywhere below. Needs torch,
numpy and Pillow.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from image_folder import unlabeled
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SCALE = 4


class PhotoPairs(Dataset):
    """A square of a shrunk photograph, (3, side / 4, side / 4), and of the photograph, (3, side, side), both float32.

    In training it is cut out anywhere, otherwise it is the middle.
    """

    def __init__(self, samples, side, training, ram_cache=False):
        self.samples, self.side, self.training = samples, side, training
        self.cached = {} if ram_cache else None

    def __len__(self):
        return len(self.samples)

    def load(self, index):
        """Return the photograph and the same a quarter as large, as (height, width, 3) uint8."""
        path, _ = self.samples[index]
        image = Image.open(path).convert("RGB")
        width, height = (max(self.side, length) // SCALE for length in image.size)
        large = image.resize((width * SCALE, height * SCALE), Image.Resampling.BICUBIC)
        return np.asarray(large.resize((width, height), Image.Resampling.BICUBIC)), np.asarray(large)

    def __getitem__(self, index):
        if self.cached is None:
            small, large = self.load(index)
        else:
            if index not in self.cached:
                self.cached[index] = self.load(index)
            small, large = self.cached[index]
        side = self.side // SCALE
        top, left = ((length - side) // 2 for length in small.shape[:2])
        if self.training:
            top, left = (int(torch.randint(length - side + 1, ())) for length in small.shape[:2])
        small = small[top : top + side, left : left + side]
        large = large[SCALE * top : SCALE * (top + side), SCALE * left : SCALE * (left + side)]
        return to_tensor(small), to_tensor(large)


def to_tensor(pixels):
    """Return (3, height, width) float32 from -1 to 1."""
    return torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1).permute(2, 0, 1).contiguous()


class Residual(nn.Sequential):
    """Two convolutions, added to their input."""

    def __init__(self, channels):
        first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        super().__init__(first, nn.BatchNorm2d(channels), nn.PReLU(), second, nn.BatchNorm2d(channels))

    def forward(self, input):
        return input + super().forward(input)


def srresnet(blocks, channels):
    """SRResNet (Ledig et al. 2017): residual blocks at the small size, then two shuffles, each to twice the side."""
    layers = [nn.Conv2d(3, channels, 9, padding=4), nn.PReLU()]
    layers += [Residual(channels) for _ in range(blocks)]
    for _ in range(2):
        layers += [nn.Conv2d(channels, 4 * channels, 3, padding=1), nn.PixelShuffle(2), nn.PReLU()]
    return nn.Sequential(*layers, nn.Conv2d(channels, 3, 9, padding=4), nn.Tanh())


def main():
    parser = argparse.ArgumentParser(description="Train an SRResNet on photographs.")
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--images", type=int, help="how many of them (all)")
    parser.add_argument("--repeats", type=int, default=1, help="how many times each counts as a file")
    parser.add_argument("--side", type=int, default=96, help="side of the squares that are cut out")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=4, help="residual blocks")
    parser.add_argument("--channels", type=int, default=32, help="channels of each")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ram-cache", action="store_true", help="keep every photograph in a dictionary")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, val, _ = unlabeled(args.data, args.images)
    train_set = PhotoPairs(train * args.repeats, args.side, training=True, ram_cache=args.ram_cache)
    val_set = PhotoPairs(val * args.repeats, args.side, training=False, ram_cache=args.ram_cache)
    workers = 0 if args.ram_cache else args.workers  # each worker would have a dictionary of its own
    batch_size = min(args.batch_size, len(train_set))
    loader = DataLoader(train_set, batch_size, shuffle=True, num_workers=workers, drop_last=True)
    val_loader = DataLoader(val_set, batch_size, num_workers=workers)
    model = srresnet(args.blocks, args.channels).to(device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    print(f"Device: {device}\nNumber of images: {len(train_set) + len(val_set)}", flush=True)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        model.train()
        for small, large in loader:
            optimizer.zero_grad()
            loss = criterion(model(small.to(device)), large.to(device))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            errors = [criterion(model(small.to(device)), large.to(device)) for small, large in val_loader]
        decibels = -10 * torch.log10(torch.stack(errors).mean() / 4)  # the range of a pixel is 2
        print(f"Epoch {epoch + 1} took {time.perf_counter() - start:.1f} s, PSNR {float(decibels):.2f}", flush=True)


if __name__ == "__main__":
    main()
