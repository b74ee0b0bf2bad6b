"""Expected finding: unfused_optimizer.

Adam walks over five hundred small parameters one after the other; fixed, fused=True updates them in one call.
"""

import argparse

import torch
from torch import nn


class FilterBank(nn.Module):
    """A parameter for each filter, so that single ones can be frozen or exchanged."""

    def __init__(self, number, width):
        super().__init__()
        self.filters = nn.ParameterList(torch.randn(width) / width for _ in range(number))

    def forward(self, x):
        return x @ torch.stack(tuple(self.filters)).T


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(FilterBank(512, 32), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, fused=args.fixed)
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
