"""Super-resolution: an SRResNet that learns to enlarge photographs four times, from a set larger than memory.

Its story: 13 GB for training and 6 GB for validation, every epoch "ALWAYS reloads it from disk and redoes some
preprocessing", and the second epoch takes as long as the first. Its author then kept every sample in a dictionary
(`--ram-cache` here): the samples took two to three times the memory of their files, and the machine swapped itself to a
standstill.

    python superres.py --data DIR [--images N] [--repeats 1] [--epochs 3] [--blocks 4] [--channels 32] [--ram-cache]

The paper's network (Ledig et al. 2017) has 16 blocks of 64 channels; the defaults here are what two cores can train.
`--repeats` counts each file so many times, so that a few photographs make a set larger than memory. A photograph that
cannot be decoded ends the run and is named: wrong input is one line on stderr and exit code 2. Needs torch, numpy and
Pillow.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from folders import Images, choose, open_image, read_unlabelled
from options import at_least, told_in_one_line
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SCALE = 4


class Cut:
    """The same square of both sizes of a photograph, as tensors: from anywhere, or from the middle."""

    def __init__(self, side: int, *, training: bool) -> None:
        self.side, self.training = side, training

    def __call__(self, both: tuple[np.ndarray, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """(height, width, 3) uint8 of the small and the large one to (3, side, side) of each."""
        small, large = both
        side = self.side // SCALE
        top, left = ((length - side) // 2 for length in small.shape[:2])
        if self.training:
            top, left = (int(torch.randint(length - side + 1, ())) for length in small.shape[:2])
        small = small[top : top + side, left : left + side]
        large = large[SCALE * top : SCALE * (top + side), SCALE * left : SCALE * (left + side)]
        return to_tensor(small), to_tensor(large)


class PhotographPairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A photograph's cut, (3, side / 4, side / 4), and what it should become, (3, side, side), both float32."""

    def __init__(
        self, images: Images, part: list[int], *, side: int, transform: Cut, ram_cache: bool = False
    ) -> None:
        self.paths = [images.paths[i] for i in part]
        self.side, self.transform = side, transform
        self.kept: dict[int, tuple[np.ndarray, np.ndarray]] | None = {} if ram_cache else None

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The photograph and the same a quarter as large, as (height, width, 3) uint8."""
        image = open_image(self.paths[index]).convert("RGB")
        width, height = (max(self.side, length) // SCALE for length in image.size)
        large = image.resize((width * SCALE, height * SCALE), Image.Resampling.BICUBIC)
        return np.asarray(large.resize((width, height), Image.Resampling.BICUBIC)), np.asarray(large)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.kept is not None and index not in self.kept:
            self.kept[index] = self.load(index)
        return self.transform(self.load(index) if self.kept is None else self.kept[index])


def to_tensor(pixels: np.ndarray) -> torch.Tensor:
    """(3, height, width) float32 from -1 to 1."""
    return torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1).permute(2, 0, 1).contiguous()


class Residual(nn.Sequential):
    """Two convolutions, added to what came in."""

    def __init__(self, channels: int) -> None:
        first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        super().__init__(first, nn.BatchNorm2d(channels), nn.PReLU(), second, nn.BatchNorm2d(channels))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) to the same."""
        return input + super().forward(input)


def srresnet(blocks: int, channels: int) -> nn.Module:
    """SRResNet (Ledig et al. 2017): residual blocks at the small size, then twice a shuffle to twice the side."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 9, padding=4), nn.PReLU()]
    layers += [Residual(channels) for _ in range(blocks)]
    for _ in range(2):
        layers += [nn.Conv2d(channels, 4 * channels, 3, padding=1), nn.PixelShuffle(2), nn.PReLU()]
    return nn.Sequential(*layers, nn.Conv2d(channels, 3, 9, padding=4), nn.Tanh())


def train(options: argparse.Namespace) -> None:
    """Every epoch with its time and the signal-to-noise ratio on the validation part."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = read_unlabelled(options.data)
    parts = [part * options.repeats for part in choose(images, num_images=options.images)]
    cuts = (Cut(options.side, training=True), Cut(options.side, training=False))
    train_set, val_set = (
        PhotographPairs(images, part, side=options.side, transform=cut, ram_cache=options.ram_cache)
        for part, cut in zip(parts, cuts)
    )
    workers = 0 if options.ram_cache else options.workers  # a dictionary of its own in each would be several caches
    batch_size = min(options.batch_size, len(train_set))
    loader = DataLoader(train_set, batch_size, shuffle=True, num_workers=workers, drop_last=True)
    val_loader = DataLoader(val_set, batch_size, num_workers=workers)
    model = srresnet(options.blocks, options.channels).to(device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    print(f"Device: {device}\nNumber of images: {len(train_set) + len(val_set)}", flush=True)
    for epoch in range(options.epochs):
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
        decibels = -10 * torch.log10(torch.stack(errors).mean() / 4)  # of pixels that span 2
        print(f"Epoch {epoch + 1} took {time.perf_counter() - start:.1f} s, PSNR {float(decibels):.2f}", flush=True)


def main() -> None:
    """Read the command line; say what is wrong with the data in one line."""
    parser = argparse.ArgumentParser(description="An SRResNet on photographs.")
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs (see folders.py)")
    parser.add_argument("--images", type=at_least(8), help="how many of them (all)")
    parser.add_argument("--repeats", type=at_least(1), default=1, help="times that each counts as a file (1)")
    parser.add_argument("--side", type=at_least(32), default=96, help="side of what is cut from them (96)")
    parser.add_argument("--batch-size", type=at_least(2), default=16, help="cuts a step (16)")
    parser.add_argument("--workers", type=at_least(0), default=2, help="loader workers (2)")
    parser.add_argument("--blocks", type=at_least(1), default=4, help="residual blocks (4)")
    parser.add_argument("--channels", type=at_least(4), default=32, help="of each (32)")
    parser.add_argument("--epochs", type=at_least(1), default=3)
    parser.add_argument("--ram-cache", action="store_true", help="keep every photograph in a dictionary")
    with told_in_one_line():
        train(parser.parse_args())


if __name__ == "__main__":
    main()
