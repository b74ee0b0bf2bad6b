"""Tiny vision transformer."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Gratings(Dataset):
    """Oriented gratings with noise; the class is the orientation."""

    def __init__(self, n, classes):
        g = torch.Generator().manual_seed(77)
        self.y = torch.randint(0, classes, (n,), generator=g)
        ang = self.y * (3.1416 / classes)
        yy, xx = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
        ph = torch.rand(n, 1, 1, generator=g) * 6.28
        wave = torch.sin(0.8 * (xx * ang.cos().view(-1, 1, 1) + yy * ang.sin().view(-1, 1, 1)) + ph)
        self.x = wave.unsqueeze(1) + 0.8 * torch.randn(n, 3, 32, 32, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class TinyViT(nn.Module):
    def __init__(self, classes, dim=64, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.pos = nn.Parameter(torch.randn(1, 64, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.enc(h).mean(1))


class Trainer:
    def __init__(self, args):
        self.args, self.rank, self.world = args, dist.get_rank(), dist.get_world_size()
        self.seed = args.seed + self.rank  # per-process seed
        torch.manual_seed(self.seed)
        self.loader, self.sampler = self.make_loader()
        self.model = DDP(TinyViT(args.classes))  # DDP syncs initial weights from rank 0
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.crit = nn.CrossEntropyLoss(label_smoothing=0.05)

    def make_loader(self):
        data = Gratings(self.args.samples, self.args.classes)
        sampler = DistributedSampler(
            data, num_replicas=self.world, rank=self.rank, shuffle=True, seed=self.seed, drop_last=True
        )
        return DataLoader(data, self.args.batch, sampler=sampler, drop_last=True), sampler

    def train(self):
        step, tick = 0, time.time()
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                loss = self.crit(self.model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                step += 1
                if self.rank == 0 and step % 50 == 0:
                    print(
                        f"epoch {epoch} step {step} loss {loss.item():.3f} "
                        f"{(time.time() - tick) / 50 * 1e3:.0f} ms/step",
                        flush=True,
                    )
                    tick = time.time()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--classes", type=int, default=8)
    p.add_argument("--samples", type=int, default=6000)
    p.add_argument("--batch", type=int, default=36)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--epochs", type=int, default=10_000)
    args = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Trainer(args).train()
    dist.destroy_process_group()
