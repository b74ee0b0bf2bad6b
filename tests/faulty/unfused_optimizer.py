"""Expected finding: unfused_optimizer.

Adam walks over five hundred small parameters one after the other; mended, fused=True updates them in one call.
"""

import argparse

import torch
from torch import nn


class Tower(nn.Module):
    """One small network per sensor, all of them wide in parameters and light in work."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.gate = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return torch.addcmul(self.shift, x, self.scale) * self.gate.sigmoid() + x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 64), *[Tower(64) for _ in range(160)], nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, fused=args.mended)
    x = torch.randn(64_000, 32)
    y = x.square().mean(1, keepdim=True)
    for step in range(args.steps):
        rows = torch.randint(len(x), (64,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(step, round(loss.item(), 5))


if __name__ == "__main__":
    main()
