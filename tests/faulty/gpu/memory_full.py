"""Expected finding: memory_full.

The first four epochs train on small images, the fifth on images three times as high and wide, and there a batch
needs 1.4 times the memory that the GPU had free; fixed, the fifth epoch computes each batch in two halves and adds
up their gradients. On an H100 with 79 GB free, a step of the first epochs keeps 12 GB and takes about 32 ms (90 GB
of memory traffic); a step of the fifth would keep 110 GB, half of it fits, and both halves take about 300 ms. With
--small the model is tiny, and the batch still as large as makes it run full.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class PatchNet(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Linear(3 * 4 * 4, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        x = self.embed(F.pixel_unshuffle(images, 4).flatten(2).transpose(1, 2))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


def main(args):
    count, side, width, depth, steps_an_epoch = (16, 24, 64, 6, 2) if args.small else (2048, 192, 128, 12, 40)
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, device=device)
    labels = torch.randint(0, 10, (count,), device=device)
    model = PatchNet(width, depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    free, _ = torch.cuda.mem_get_info()
    bytes_a_patch = 10 * width * depth + 2000  # what bfloat16 layers keep for the backward; the pixels and gradients
    batch = int(1.4 * free / (bytes_a_patch * (side // 4) ** 2)) // 2 * 2
    for step in range(args.steps):
        grown = step >= 4 * steps_an_epoch
        stride, pieces = (1, 2 if args.fixed else 1) if grown else (3, 1)
        optimizer.zero_grad()
        total = 0.0
        for rows in torch.randint(count, (batch,), device=device).chunk(pieces):
            x = images[:, :, ::stride, ::stride][rows].float() / 255
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), labels[rows]) / pieces
            loss.backward()
            total += loss.detach()
        optimizer.step()
        if step % steps_an_epoch == 0:
            print(f"step {step} loss {total.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    main(parser.parse_args())
