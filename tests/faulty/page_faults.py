"""Expected finding: page_faults.

Activations of 32 MB and more are given back to the system and faulted in anew at each step; fixed, the script
starts itself again with an allocator that keeps its memory.
"""

import os
import sys

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
KEEP = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
}
if MENDED and "MALLOC_TOP_PAD_" not in os.environ:
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **KEEP})

import torch
from torch import nn


class Field(nn.Module):
    """A picture as a function of the coordinates of its pixels."""

    def __init__(self, width=16, depth=2):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, points):
        x = torch.relu(self.first(points))
        for layer in self.hidden:
            x = torch.relu(layer(x)) + x
        return self.last(x)


torch.manual_seed(0)
torch.set_num_threads(1)
side = torch.linspace(-1, 1, 768)
points = torch.cartesian_prod(side, side)
target = (points[:, :1] * 9).sin() * (points[:, 1:] * 7).cos()
model = Field()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
for step in range(STEPS):
    loss = (model(points) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"{step:6d} {loss.item():.5f}")
