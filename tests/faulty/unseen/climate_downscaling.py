"""Expected finding: slow_transport.

The collate function leaves the batch as float64 numpy arrays, so every batch of
about 25 MB is pickled and pushed through a pipe from the worker to the trainer.
"""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

parser = argparse.ArgumentParser(description="coarse rain field from reanalysis windows")
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()

HISTORY = 4


class Reanalysis(Dataset):
    """Sliding windows over a long record of gridded fields."""

    def __init__(self, hours=200, channels=6, grid=128):
        rng = np.random.default_rng(11)
        self.fields = rng.standard_normal((hours, channels, grid, grid))

    def __len__(self):
        return 20000

    def __getitem__(self, i):
        t = i % (len(self.fields) - HISTORY)
        window = self.fields[t : t + HISTORY]
        rain = self.fields[t + HISTORY, 0, ::8, ::8]
        return window, rain


def to_numpy(samples):
    windows, rain = zip(*samples)
    return {"window": np.stack(windows), "rain": np.stack(rain)}


def to_float_tensors(samples):
    windows, rain = zip(*samples)
    return {
        "window": torch.from_numpy(np.stack(windows, dtype=np.float32, casting="same_kind")),
        "rain": torch.from_numpy(np.stack(rain, dtype=np.float32, casting="same_kind")),
    }


loader = DataLoader(
    Reanalysis(),
    batch_size=8,
    shuffle=True,
    num_workers=2,
    collate_fn=to_float_tensors if args.fixed else to_numpy,
)

model = nn.Sequential(
    nn.Conv2d(HISTORY * 6, 32, 8, stride=8),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 1, 1),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

step = 0
began = time.perf_counter()
while step < args.steps:
    for batch in loader:
        x = torch.as_tensor(batch["window"]).float().flatten(1, 2)
        y = torch.as_tensor(batch["rain"]).float()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"{step:6d}  loss {loss.item():.4f}", flush=True)
        if step >= args.steps:
            break

print(f"{step} steps in {time.perf_counter() - began:.2f} s")
