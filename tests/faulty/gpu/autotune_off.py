"""Expected finding: channels_first.

Large convolution kernels over one, three, and nine channels run in the layout that makes them slowest, with cuDNN's
autotuning off although every batch has the same shape. It was written for cuDNN's rules picking a slow algorithm, as
once reported (PyTorch issue 146096); on an H100 with torch 2.11 they do not: autotuning changes a step of 51 ms by
0.0%, and channels-last takes 17% off it. `--fixed` turns autotuning on.
"""

import argparse

import torch
from torch import nn


class Deblur(nn.Module):
    """Takes the blur of a microscope out of gray images, the widest kernel first."""

    def __init__(self, widest):
        super().__init__()
        sizes = [widest, widest * 3 // 5 | 1, widest * 2 // 5 | 1, widest // 5 | 1]
        self.spread = nn.Conv2d(1, 1, sizes[0], padding=sizes[0] // 2)
        self.split = nn.Conv2d(1, 9, sizes[1], padding=sizes[1] // 2)
        self.parts = nn.Conv2d(9, 9, sizes[2], padding=sizes[2] // 2, groups=3)
        self.join = nn.Conv2d(9, 1, sizes[3], padding=sizes[3] // 2)

    def forward(self, images):
        x = torch.relu(self.split(images + self.spread(images)))
        return images + self.join(torch.relu(self.parts(x)))


def main(args):
    batch, side, widest = (2, 32, 7) if args.small else (8, 256, 51)
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = args.fixed
    sharp = torch.rand(8 * batch, 1, side, side, device=device)
    blurred = nn.functional.avg_pool2d(sharp, 5, stride=1, padding=2)
    model = Deblur(widest).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(args.steps):
        start = step * batch % len(sharp)
        loss = nn.functional.l1_loss(model(blurred[start : start + batch]), sharp[start : start + batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    main(parser.parse_args())
