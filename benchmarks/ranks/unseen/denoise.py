"""Residual denoiser trained on noisy textures."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, BATCH = 24, 16
PROBS = torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99])


def textures(n=6000, size=32):
    g = torch.Generator().manual_seed(8)
    coarse = torch.randn(n, 1, size // 4, size // 4, generator=g)
    return TensorDataset(F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False))


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        return x + F.relu(self.conv(x))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.body = nn.ModuleList([ResBlock(WIDTH) for _ in range(2)])
        self.tail = nn.Conv2d(WIDTH, 1, 3, padding=1)

    def forward(self, x):
        h = self.stem(x)
        for block in self.body:
            h = block(h)
        return x - self.tail(h)


def watch_activations(net, stats):
    """Keep activation percentiles of every residual block for the dashboards."""

    def make(name):
        def hook(_mod, inp, out):
            for side, t in (("in", inp[0]), ("out", out)):
                flat = t.detach().flatten()
                stats[f"{name}.{side}"] = {"pct": torch.quantile(flat, PROBS), "hist": torch.histc(flat, 64)}

        return hook

    for name, mod in net.named_modules():
        if isinstance(mod, ResBlock):
            mod.register_forward_hook(make(name))


def run():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Denoiser()
    stats = {}
    if rank == 0:
        watch_activations(net, stats)
    ddp = DDP(net)
    torch.manual_seed(100 + rank)  # independent noise on every rank

    data = textures()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, BATCH, sampler=sampler, drop_last=True)
    opt = torch.optim.Adam(ddp.parameters(), lr=5e-4)
    step, t0 = 0, time.time()
    for epoch in range(5000):
        sampler.set_epoch(epoch)
        for (clean,) in loader:
            noisy = clean + 0.3 * torch.randn_like(clean)
            loss = F.mse_loss(ddp(noisy), clean)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 40 == 0:
                med = stats["body.1.out"]["pct"][2].item()
                print(
                    f"step {step} mse {loss.item():.4f} act-median {med:.3f} "
                    f"{(time.time() - t0) / 40 * 1e3:.0f} ms/step",
                    flush=True,
                )
                t0 = time.time()
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
