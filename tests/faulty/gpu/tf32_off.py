"""Expected finding: full_precision.

A field is fitted at points whose positions and values must keep float32's digits, so autocast is out of the
question, but the matrix products run without tensor cores, at PyTorch's default precision, "highest"; fixed,
"high" lets them round their inputs to TF32 while all that is stored stays float32. On an H100 a step's 0.75 TFLOP
take 15 ms at 50 TFLOP/s and 2 ms at 400, beside 3 ms of sines and sums.
"""

import argparse

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.register_buffer("frequencies", 10 * torch.randn(3, width // 2))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, points):
        angles = (points[:, :, None] * self.frequencies).sum(1)  # no matrix product: positions are never rounded
        x = torch.cat([angles.sin(), angles.cos()], dim=1)
        for layer in self.layers:
            x = x + torch.sin(layer(x))
        return self.out(x)


def main(args):
    batch, width, depth = (64, 64, 2) if args.small else (32_768, 1024, 4)
    device = torch.device("cuda")
    torch.manual_seed(0)
    if args.fixed:
        torch.set_float32_matmul_precision("high")
    points = torch.rand(8 * batch, 3, device=device)
    values = torch.sin(20 * points).sum(1, keepdim=True)
    model = Field(width, depth).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    for step in range(args.steps):
        start = step * batch % len(points)
        loss = nn.functional.mse_loss(model(points[start : start + batch]), values[start : start + batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    main(parser.parse_args())
