"""Expected finding: none.

Every batch is some 17 MB of float32, but the workers hand it over in shared memory while the
network, already in bfloat16, computes for much longer than that takes.
"""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEPTH, SIZE = 16, 128


class Stacks(Dataset):
    """Crops of depth stacks out of one long scan."""

    def __init__(self):
        rng = np.random.default_rng(6)
        self.scan = rng.integers(0, 4096, (DEPTH, 512, 512), dtype=np.uint16)

    def __len__(self):
        return 20000

    def __getitem__(self, i):
        y, x = (i * 7919) % 384, (i * 104729) % 384
        crop = self.scan[:, y : y + SIZE, x : x + SIZE]
        return torch.from_numpy(crop.astype(np.float32)).mul_(1 / 4096), i % 4


model = nn.Sequential(
    nn.Conv2d(DEPTH, 64, 3, stride=2, padding=1), nn.ReLU(inplace=True),
    nn.Conv2d(64, 96, 3, padding=1), nn.ReLU(inplace=True),
    nn.Conv2d(96, 128, 3, stride=2, padding=1), nn.ReLU(inplace=True),
    nn.Conv2d(128, 128, 3, stride=2, padding=1), nn.ReLU(inplace=True),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 4),
).to(memory_format=torch.channels_last)


def steps_of(loader, wanted):
    done = 0
    while done < wanted:
        for batch in loader:
            yield batch
            done += 1
            if done >= wanted:
                return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--fixed", action="store_true", help="has nothing to do here")
    args = parser.parse_args()
    torch.set_num_threads(1)

    loader = DataLoader(Stacks(), batch_size=16, shuffle=True, num_workers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    began = time.perf_counter()
    for step, (stack, kind) in enumerate(steps_of(loader, args.steps), 1):
        stack = stack.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(stack), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"{step}: {loss.item():.3f}", flush=True)
    print(f"{args.steps} steps, {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
