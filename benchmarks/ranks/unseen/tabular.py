"""Fault classification on sensor tables with per-class metrics."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

FEATURES, CLASSES, ROWS, BATCH = 64, 20, 60_000, 768


class Table(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(2)
        centers = torch.randn(CLASSES, FEATURES, generator=g)
        self.y = torch.randint(0, CLASSES, (ROWS,), generator=g)
        self.x = centers[self.y] + 1.5 * torch.randn(ROWS, FEATURES, generator=g)

    def __len__(self):
        return ROWS

    def __getitem__(self, rows):
        rows = torch.as_tensor(rows)
        return self.x[rows], self.y[rows]


def mlp():
    return nn.Sequential(
        nn.Linear(FEATURES, 256),
        nn.LayerNorm(256),
        nn.SiLU(),
        nn.Linear(256, 256),
        nn.LayerNorm(256),
        nn.SiLU(),
        nn.Linear(256, CLASSES),
    )


class MetricTracker:
    """Running global precision / recall per class."""

    def __init__(self):
        self.tp, self.fp, self.fn = [0.0] * CLASSES, [0.0] * CLASSES, [0.0] * CLASSES
        self.loss, self.seen = 0.0, 0

    @staticmethod
    def _global(value):
        t = torch.as_tensor(value, dtype=torch.float32).reshape(1)
        dist.all_reduce(t)
        return t.item()

    def update(self, loss, logits, y):
        pred = logits.argmax(1)
        for c in range(CLASSES):
            p, t = pred == c, y == c
            self.tp[c] += self._global((p & t).sum())
            self.fp[c] += self._global((p & ~t).sum())
            self.fn[c] += self._global((~p & t).sum())
        self.loss += self._global(loss.detach()) / dist.get_world_size()
        self.seen += 1

    def summary(self):
        f1 = [2 * a / max(2 * a + b + c, 1.0) for a, b, c in zip(self.tp, self.fp, self.fn)]
        return self.loss / max(self.seen, 1), sum(f1) / CLASSES


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Table()
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, sampler=BatchSampler(sampler, BATCH, True), batch_size=None)
    model = DDP(mlp())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ce = nn.CrossEntropyLoss()
    for epoch in range(100_000):
        sampler.set_epoch(epoch)
        tracker, t0 = MetricTracker(), time.time()
        for x, y in loader:
            logits = model(x)
            loss = ce(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tracker.update(loss, logits, y)
        if dist.get_rank() == 0 and epoch % 2 == 0:
            avg, f1 = tracker.summary()
            print(
                f"epoch {epoch} loss {avg:.4f} macro-f1 {f1:.3f} "
                f"{(time.time() - t0) / len(loader) * 1e3:.0f} ms/step",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
