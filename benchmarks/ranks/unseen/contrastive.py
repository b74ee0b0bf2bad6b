"""SimCLR-style pretraining on small grayscale shapes."""

import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class TwoViews(Dataset):
    def __init__(self, n=9000, size=28):
        g = torch.Generator().manual_seed(21)
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        cx, cy = torch.rand(2, n, 1, 1, generator=g) * 14 + 7
        r = torch.rand(n, 1, 1, generator=g) * 6 + 3
        e = torch.rand(n, 1, 1, generator=g) * 1.5 + 0.5
        self.img = (((xx - cx) ** 2 * e + (yy - cy) ** 2) < r * r).float()

    def __len__(self):
        return len(self.img)

    @staticmethod
    def augment(x):
        dx, dy = random.randint(-3, 3), random.randint(-3, 3)
        x = torch.roll(x, (dx, dy), (0, 1))
        return (x + 0.15 * torch.randn_like(x)).unsqueeze(0)

    def __getitem__(self, i):
        return self.augment(self.img[i]), self.augment(self.img[i])


def encoder(out=64):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 1, 1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, out),
    )


def nt_xent(a, b, tau=0.2):
    z = F.normalize(torch.cat([a, b]), dim=1)
    sim = z @ z.t() / tau
    sim.fill_diagonal_(float("-inf"))
    n = len(a)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(0, n)])
    return F.cross_entropy(sim, target)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed_everything(42)

    loader = DataLoader(TwoViews(), batch_size=96, shuffle=True, drop_last=True)
    model = DDP(encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)

    it, clock = 0, time.monotonic()
    for epoch in range(10_000):
        for v1, v2 in loader:
            z1, z2 = model(torch.cat([v1, v2])).chunk(2)
            loss = nt_xent(z1, z2)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            it += 1
            if it % 50 == 0 and rank == 0:
                now = time.monotonic()
                print(
                    f"epoch {epoch} it {it} nt-xent {loss.item():.3f} ({(now - clock) / 50 * 1e3:.0f} ms/it)",
                    flush=True,
                )
                clock = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
