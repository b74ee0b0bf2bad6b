"""Expected finding: full_precision.

Wide float32 matrix products on a processor that is faster in bfloat16 (AMX, some with AVX512-bf16); fixed, the
forward runs under autocast. Elsewhere there is nothing to gain and nothing to find.
"""

import sys

import torch
from torch import nn

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def main():
    torch.manual_seed(0)
    data = torch.randn(16_384, 1024)
    labels = torch.randint(0, 100, (16_384,))
    model = nn.Sequential(*[Block(1024) for _ in range(3)], nn.Linear(1024, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        start = step * 512 % len(data)
        x, y = data[start : start + 512], labels[start : start + 512]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=MENDED):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{step} {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
