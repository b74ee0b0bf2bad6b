"""Expected finding: none.

A few sessions are far longer than the rest and take 0.15 s to summarise, but the queue of
batches is long enough that the training never notices.
"""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EVENTS, KEEP, ITEMS = 8, 24, 4000
BATCH = 32


def transitions(events):
    """Counts which kind of event follows which."""
    table = np.zeros((EVENTS, EVENTS), dtype=np.float32)
    for before, after in zip(events[:-1], events[1:]):
        table[before, after] += 1
    return table / max(1, len(events) - 1)


class Sessions(Dataset):
    def __init__(self, n=64000):
        rng = np.random.default_rng(9)
        self.length = np.where(rng.random(n) < 1 / 800, 500_000, 40)
        self.kinds = rng.integers(0, EVENTS, 600_000)
        self.items = rng.integers(0, ITEMS, 600_000)
        self.first = rng.integers(0, 90_000, n)
        self.bought = rng.integers(0, 2, n).astype(np.float32)

    def __len__(self):
        return len(self.length)

    def __getitem__(self, i):
        span = slice(self.first[i], self.first[i] + self.length[i])
        if self.length[i] > 1000:
            kinds = self.kinds[span][::3]
        else:
            kinds = self.kinds[span]
        return self.items[span][-KEEP:], transitions(kinds.tolist()), self.bought[i]


class Buyer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.item = nn.Embedding(ITEMS, width, sparse=True)
        self.encode = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 2 * width), nn.GELU(),
            nn.Linear(2 * width, width), nn.GELU(),
        )
        self.head = nn.Linear(width + EVENTS * EVENTS, 1)

    def forward(self, items, table):
        h = self.encode(self.item(items)).amax(1)
        return self.head(torch.cat([h, table.flatten(1)], 1)).squeeze(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--fixed", action="store_true", help="nothing to repair")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    loader = DataLoader(Sessions(), batch_size=BATCH, shuffle=True, num_workers=2, prefetch_factor=16)
    model = Buyer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step, began = 0, time.perf_counter()
    while step < args.steps:
        for items, table, bought in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                score = model(items, table)
            loss = nn.functional.binary_cross_entropy_with_logits(score.float(), bought)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}, {step} steps, {time.perf_counter() - began:.2f} s")
