"""Expected finding: pageable_copy.

Each step sends 50 MB of float32 from ordinary memory, which the driver first copies to a pinned buffer of its own
while the host and the GPU wait; fixed, the loader pins its batches. On an H100, 50 MB take 6 ms at 8 GB/s and 1 ms
at 50 GB/s, beside 10 ms of computing (5 TFLOP in bfloat16 and 12 GB of memory traffic).
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    """Few and long: a sample is a megabyte, ready to be batched."""

    def __init__(self, count, frames, width):
        self.frames = torch.randn(count, frames, width)
        self.labels = torch.randint(0, 10, (count,))

    def __len__(self):
        return len(self.frames) * 100

    def __getitem__(self, index):
        index %= len(self.frames)
        return self.frames[index], self.labels[index]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main(args):
    batch, frames, width, depth, workers = (4, 4, 16, 1, 1) if args.small else (48, 256, 1024, 8, 6)
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Recordings(16 if args.small else 128, frames, width),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=args.fixed,
    )
    body = nn.Sequential(*[Block(width) for _ in range(depth)]).to(device)
    head = nn.Linear(width, 10).to(device)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-4, fused=True)
    step = 0
    while True:
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(head(body(x).mean(1)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            step += 1
            if step >= args.steps:
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    main(parser.parse_args())
