"""Expected finding: full_precision.

The script has bfloat16 autocast, but it hangs on --amp, which is off by default; the large
linear layers run in float32 although this CPU has bfloat16 units.
"""
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100000)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--dim", type=int, default=320)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--amp", action="store_true", help="mixed precision training")
    p.add_argument("--log-every", type=int, default=20)
    p.add_argument("--fixed", action="store_true")
    args = p.parse_args()
    args.amp = args.amp or args.fixed
    return args


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.over_tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.ReLU(), nn.Linear(2 * tokens, tokens))
        self.over_channels = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.over_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm2(x))


class PatchMixer(nn.Module):
    def __init__(self, dim, depth, patch=4, size=32, classes=10):
        super().__init__()
        self.patch = patch
        tokens = (size // patch) ** 2
        self.embed = nn.Linear(3 * patch * patch, dim)
        self.blocks = nn.Sequential(*[MixerBlock(tokens, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, image):
        p = self.patch
        patches = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5)
        tokens = self.embed(patches.flatten(3).flatten(1, 2))
        return self.head(self.blocks(tokens).mean(1))


def main():
    args = get_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.randn(2048, 3, 32, 32)
    classes = torch.randint(0, 10, (2048,))
    loader = DataLoader(TensorDataset(images, classes), args.batch_size, shuffle=True)

    model = PatchMixer(args.dim, args.depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    began, step, running = time.perf_counter(), 0, 0.0
    while step < args.steps:
        for image, target in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
                loss = criterion(model(image), target)
            loss.backward()
            optimizer.step()
            step += 1
            running += loss.item()
            if step % args.log_every == 0:
                print(f"step {step}: loss {running / args.log_every:.3f}")
                running = 0.0
            if step >= args.steps:
                break
    print(f"done, {step} steps in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
