"""Expected finding: small_batch.

Two samples a step: the step is all calls and hardly any arithmetic; fixed, 64 samples a step. What counts is the
time a sample takes.
"""

import argparse

import torch
from torch import nn


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(40))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(40))
        self.out = nn.Linear(32, 500)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer, norm in zip(self.layers, self.norms):
            x = x + torch.relu(layer(norm(x)))
        return self.out(x.mean(1))


def main():
    args = get_args()
    batch_size = 64 if args.fixed else 2
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokens = torch.randint(500, (20_000, 9))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
    for step in range(args.steps):
        start = step * batch_size % (len(tokens) - batch_size)
        batch = tokens[start : start + batch_size]
        loss = nn.functional.cross_entropy(net(batch[:, :-1]), batch[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
