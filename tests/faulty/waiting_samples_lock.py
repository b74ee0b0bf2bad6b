"""Expected finding: waiting_samples.

A rate limiter lets a worker ask for a record only every few milliseconds and makes it sleep in between; fixed, each request
brings a whole batch.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


class RateLimiter:
    def __init__(self, seconds):
        self.seconds, self.next = seconds, 0.0

    def wait(self):
        now = time.monotonic()
        if now < self.next:
            time.sleep(self.next - now)
        self.next = max(now, self.next) + self.seconds


class Records(Dataset):
    def __init__(self):
        self.limiter = RateLimiter(0.004)
        self.table = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 300_000

    def __getitem__(self, index):
        self.limiter.wait()
        return self.table[index % 2000], index % 4

    if FIXED:

        def __getitems__(self, indices):
            self.limiter.wait()
            return [(self.table[index % 2000], index % 4) for index in indices]


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 4))

    def forward(self, x):
        return self.layers(x)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Records(), 32, shuffle=True, num_workers=1)
    model = Scorer()
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    for records, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(records), labels).backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
