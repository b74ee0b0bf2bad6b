"""Multivariate load forecasting with a GRU."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CH, CONTEXT, HIDDEN = 8, 48, 96


class Series(Dataset):
    def __init__(self, steps, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(steps).unsqueeze(1)
        period = torch.tensor([12.0, 24, 36, 48, 60, 72, 96, 168])
        self.data = torch.sin(6.2832 * t / period) + 0.2 * torch.randn(steps, CH, generator=g)

    def __len__(self):
        return len(self.data) - CONTEXT - 1

    def __getitem__(self, i):
        return self.data[i : i + CONTEXT], self.data[i + CONTEXT]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(CH, HIDDEN, num_layers=2, batch_first=True)
        self.head = nn.Linear(HIDDEN, CH)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


class Trainer:
    eval_every = 10

    def __init__(self):
        self.rank = dist.get_rank()
        torch.manual_seed(17)
        self.train_set, self.val_set = Series(30_000, 1), Series(2_600, 2)
        self.sampler = DistributedSampler(self.train_set, shuffle=True, drop_last=True)
        self.loader = DataLoader(self.train_set, batch_size=32, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(self.val_set, batch_size=256)
        self.model = DDP(Forecaster())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.best = float("inf")

    @torch.no_grad()
    def evaluate(self):
        net = self.model.module.eval()
        total = sum(nn.functional.l1_loss(net(x), y, reduction="sum") for x, y in self.val_loader)
        self.model.train()
        return (total / len(self.val_set) / CH).item()

    def fit(self, epochs=1000):
        step, t0 = 0, time.time()
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                loss = nn.functional.mse_loss(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                step += 1
                if step % self.eval_every == 0 and self.rank == 0:
                    self.best = min(self.best, self.evaluate())
                if step % 50 == 0 and self.rank == 0:
                    print(
                        f"step {step} mse {loss.item():.4f} best val mae {self.best:.4f} "
                        f"{(time.time() - t0) / 50 * 1e3:.0f} ms/step",
                        flush=True,
                    )
                    t0 = time.time()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Trainer().fit()
    dist.destroy_process_group()
