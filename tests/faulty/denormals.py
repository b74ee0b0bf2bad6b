"""Expected finding: denormals.

The leaky memory of a reservoir network decays until nearly all of it is subnormal numbers, and stays there;
fixed, torch.set_flush_denormal(True).
"""

import sys

import torch
from torch import nn

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
torch.set_flush_denormal(MENDED)
torch.set_num_threads(1)


class Reservoir(nn.Module):
    """Remembers rare events in a slowly fading trace, seen through a square root; only the readout learns."""

    def __init__(self, num_units=512, batch=64, decay=0.7):
        super().__init__()
        self.decay = decay
        self.readout = nn.Sequential(
            nn.Linear(num_units, 512), nn.Tanh(), nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, 3)
        )
        self.register_buffer("trace", torch.zeros(batch, num_units))

    def forward(self, units):
        level = torch.zeros_like(self.trace)
        for unit in units:
            self.trace.mul_(self.decay)
            self.trace[:, unit] += 1.0
            level += self.trace.sqrt()
        return self.readout(level)


def main():
    torch.manual_seed(0)
    model = Reservoir()
    optimizer = torch.optim.SGD(model.readout.parameters(), lr=0.01)
    model.trace.uniform_(0.5, 1.5)
    for step in range(STEPS):
        target = torch.randn(64, 3)
        loss = nn.functional.mse_loss(model(torch.randint(512, (8,))), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(step, loss.item())


main()
