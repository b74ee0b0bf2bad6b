"""Image classification, Trainer style."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class Config:
    classes: int = 10
    train_size: int = 9_000
    val_size: int = 720
    batch: int = 72
    lr: float = 0.05
    epochs: int = 1000
    log_every: int = 50


def synth_images(n, classes, seed):
    g = torch.Generator().manual_seed(99)
    protos = torch.randn(classes, 3, 32, 32, generator=g)
    g.manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    x = protos[y] * 0.5 + torch.randn(n, 3, 32, 32, generator=g)
    return TensorDataset(x, y)


def conv_block(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(4, cout), nn.ReLU(inplace=True))


def build_model(classes):
    return nn.Sequential(
        conv_block(3, 24, 1),
        conv_block(24, 32, 2),
        conv_block(32, 64, 2),
        conv_block(64, 64, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        train = synth_images(cfg.train_size, cfg.classes, seed=1)
        val = synth_images(cfg.val_size, cfg.classes, seed=2)
        self.sampler = DistributedSampler(train, shuffle=True, drop_last=True)
        self.train_loader = DataLoader(train, cfg.batch, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(val, 48, sampler=DistributedSampler(val, shuffle=False))
        self.model = DistributedDataParallel(build_model(cfg.classes))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
        self.loss_fn = nn.CrossEntropyLoss()
        self.step = 0

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        t0 = time.perf_counter()
        for x, y in self.train_loader:
            loss = self.loss_fn(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % self.cfg.log_every == 0 and self.rank == 0:
                dt = (time.perf_counter() - t0) / self.cfg.log_every
                print(f"[{epoch}/{self.step}] loss={loss.item():.4f} {dt * 1e3:.0f} ms/step", flush=True)
                t0 = time.perf_counter()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        stats = torch.zeros(2)
        for x, y in self.val_loader:
            pred = self.model.module(x).argmax(1)
            stats += torch.tensor([(pred == y).sum().item(), float(len(y))])
        dist.all_reduce(stats)
        return (stats[0] / stats[1]).item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.train_epoch(epoch)
            acc = self.validate()
            if self.rank == 0:
                print(f"epoch {epoch}: val acc {acc:.3f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1234)
    Trainer(Config()).fit()
    dist.destroy_process_group()
