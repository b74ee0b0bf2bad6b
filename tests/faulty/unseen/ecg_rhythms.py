"""Expected finding: shallow_prefetch.

One recording in 320 is a half-day one that takes some 0.3 s to clean, the others take
well under a millisecond; prefetch_factor=1 leaves no queue to ride over it, though on average the workers are fast enough.
"""
import argparse
import time

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn
from torch.utils.data import DataLoader, Dataset

SHORT, LONG, WINDOW = 400, 5_000_000, 25


def remove_baseline(signal):
    """Subtract a running median, a block at a time."""
    padded = np.pad(signal, WINDOW // 2, mode="edge")
    baseline = np.empty_like(signal)
    for start in range(0, len(signal), 8192):
        block = padded[start : start + 8192 + WINDOW - 1]
        middle = np.partition(sliding_window_view(block, WINDOW), WINDOW // 2, axis=-1)[:, WINDOW // 2]
        baseline[start : start + len(middle)] = middle
    return signal - baseline


class Rhythms(Dataset):
    def __init__(self, n=40000, seed=1):
        rng = np.random.default_rng(seed)
        self.is_long = rng.random(n) < 1 / 320
        self.label = rng.integers(0, 5, n)
        self.start = rng.integers(0, LONG, n)
        self.tape = rng.standard_normal(LONG * 2 + SHORT, dtype=np.float32)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        length = LONG if self.is_long[i] else SHORT
        signal = self.tape[self.start[i] : self.start[i] + length]
        clean = remove_baseline(signal)
        if length > SHORT:
            middle = (length - SHORT) // 2
            clean = clean[middle : middle + SHORT]
        return torch.from_numpy(clean.copy()), int(self.label[i])


class Classifier(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(SHORT, width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, 5),
        )

    def forward(self, x):
        # all 32 shifted views of the beat, averaged
        views = torch.stack([x.roll(s, dims=1) for s in range(32)], dim=1)
        return self.layers(views).mean(1)


def train(args):
    torch.manual_seed(0)
    loader = DataLoader(
        Rhythms(), batch_size=8, shuffle=True, num_workers=2,
        prefetch_factor=16 if args.fixed else 1,
    )
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step, began = 0, time.perf_counter()
    while True:
        for signal, label in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(signal).float(), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 200 == 0:
                print(f"step {step} loss {loss.item():.3f}")
            if step >= args.steps:
                print(f"finished {step} steps after {time.perf_counter() - began:.2f} s")
                return


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--steps", type=int, default=100000)
    cli.add_argument("--fixed", action="store_true")
    torch.set_num_threads(1)
    train(cli.parse_args())
