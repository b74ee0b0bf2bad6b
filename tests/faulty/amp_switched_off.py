"""Expected finding: full_precision.

Mixed precision is written into the script, behind an option that is off; fixed, it is on.
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true", help="mixed precision")
parser.add_argument("--fixed", dest="amp", action="store_true")
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mix(self.norm(x))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(512) for _ in range(4)], nn.Linear(512, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=args.amp)
    x, y = torch.randn(768, 512), torch.randint(0, 64, (768,))
    for _ in range(args.steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()
