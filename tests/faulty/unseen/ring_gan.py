"""Expected finding: anomaly_detection.

torch.autograd.set_detect_anomaly(True) was left on after a search for a NaN. The run is a
short trial of 40 rounds.
"""
import argparse
import math
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description="GAN for points on eight small rings")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(7)
torch.autograd.set_detect_anomaly(not args.fixed)

BATCH, NOISE, WIDTH = 128, 16, 64


def rings(n):
    centre = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    angle = torch.rand(n) * 2 * math.pi
    x = 2 * torch.cos(centre) + 0.2 * torch.cos(angle)
    y = 2 * torch.sin(centre) + 0.2 * torch.sin(angle)
    return torch.stack([x, y], 1)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.tanh(self.inner(h)) * torch.sigmoid(self.gate(h))


class Tower(nn.Module):
    def __init__(self, inputs, outputs, depth=6):
        super().__init__()
        self.enter = nn.Linear(inputs, WIDTH)
        self.blocks = nn.ModuleList(Residual(WIDTH) for _ in range(depth))
        self.leave = nn.Linear(WIDTH, outputs)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


generator = Tower(NOISE, 2)
critic = Tower(2, 1)
g_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9), fused=True)
c_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9), fused=True)
softplus = nn.functional.softplus

began = time.perf_counter()
for round_ in range(1, args.steps + 1):
    real = rings(BATCH)
    fake = generator(torch.randn(BATCH, NOISE))

    c_loss = softplus(-critic(real)).mean() + softplus(critic(fake.detach())).mean()
    c_opt.zero_grad()
    c_loss.backward()
    c_opt.step()

    g_loss = softplus(-critic(fake)).mean()
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()

    if round_ % 10 == 0:
        print(f"round {round_}: critic {c_loss.item():.3f} generator {g_loss.item():.3f}")

print(f"{args.steps} rounds in {time.perf_counter() - began:.2f} s")
