"""Expected finding: cudnn_autotune.

Every batch is cropped to a height and a width of its own, so with torch.backends.cudnn.benchmark on, cuDNN tries
its algorithms anew in nearly every step; fixed, it is off. On an H100 each of the step's five convolutions,
forward and backward, is tried up to ten ways of about 1.5 ms, some 70 ms a step, where the rules take about 1.3 ms
to choose, 6 ms, and 2 ms go into computing.
"""

import argparse

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.out = nn.Linear(2 * width, 10)

    def forward(self, images):
        x = torch.relu(self.conv1(images))
        x = torch.relu(self.conv2(x))
        return self.out(x.mean((2, 3)))


def main(args):
    batch, least, most, width = (4, 16, 32, 8) if args.small else (64, 128, 256, 64)
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = not args.fixed
    images = torch.randn(4 * batch, 3, most, most, device=device)
    labels = torch.randint(0, 10, (4 * batch,), device=device)
    model = Net(width).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        height, width = torch.randint(least, most + 1, (2,)).tolist()
        start = step * batch % len(images)
        crops = images[start : start + batch, :, :height, :width].contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(crops), labels[start : start + batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    main(parser.parse_args())
