"""Expected finding: full_precision.

Twenty-four steps of a wide network in float32, and the script is done; fixed, bfloat16 autocast.
"""

import contextlib
import sys

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 24


def main():
    torch.manual_seed(0)
    inputs, targets = torch.randn(6144, 1024), torch.randn(6144, 1024)
    model = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        rows = slice(step % 6 * 1024, step % 6 * 1024 + 1024)
        with torch.autocast("cpu", torch.bfloat16) if FIXED else contextlib.nullcontext():
            loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
