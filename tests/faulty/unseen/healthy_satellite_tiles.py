"""Expected finding: none.

Each tile waits some milliseconds for its storage, but eight workers wait side by side and the
batches are ready long before the network asks for them.
"""
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TileStore:
    """Stands for an object store: every request takes a moment, without using the processor."""

    def __init__(self, latency=0.004):
        self.latency = latency
        self.tiles = torch.randint(0, 256, (64, 4, 64, 64), dtype=torch.uint8)

    def get(self, key):
        time.sleep(self.latency)
        return self.tiles[key % len(self.tiles)]


class LandCover(Dataset):
    def __init__(self, store):
        self.store = store

    def __len__(self):
        return 8000

    def __getitem__(self, key):
        tile = self.store.get(key)
        return tile, (tile[3] > 127).long()


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True))


class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = block(4, 32), block(32, 64)
        self.middle = block(64, 64)
        self.up = block(96, 32)
        self.out = nn.Conv2d(32, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.middle(self.down2(nn.functional.max_pool2d(a, 2)))
        b = nn.functional.interpolate(b, scale_factor=2)
        return self.out(self.up(torch.cat([a, b], 1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--fixed", action="store_true", help="no effect")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    loader = DataLoader(LandCover(TileStore()), batch_size=8, shuffle=True, num_workers=8, persistent_workers=True)
    model = SmallUNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step, began = 0, time.perf_counter()
    while step < args.steps:
        for tile, cover in loader:
            x = (tile.float() / 255).to(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), cover)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step >= args.steps:
                break
    print(f"{step} steps in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
