"""Expected finding: profiler_on.

The autograd profiler is left around every epoch and nobody reads what it records; fixed, it is disabled.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10_000)
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(20, 48), *[Residual(48) for _ in range(24)], nn.Linear(48, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
loader = DataLoader(TensorDataset(torch.randn(1600, 20), torch.randint(3, (1600,))), batch_size=32, shuffle=True)


def train_epoch(limit):
    done = 0
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        done += 1
        if done == limit:
            break
    return done


steps = 0
for epoch in range(args.epochs):
    with torch.autograd.profiler.profile(enabled=not args.fixed):
        steps += train_epoch(args.steps - steps)
    if steps >= args.steps:
        break
