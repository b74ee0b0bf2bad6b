"""Convolutional autoencoder for vibration records, FSDP2. One shard of the archive per rank."""

import bz2
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, RandomSampler

LENGTH, RECORDS, BATCH = 2048, 600, 60

# shard index -> container; the March campaign was archived by the old two-axis exporter
SHARD_CODEC = {0: "raw", 1: "raw", 2: "bz2"}


def record(gen):
    t = torch.linspace(0, 1, LENGTH)
    f = torch.rand(3, generator=gen) * 60 + 5
    wave = sum(torch.sin(6.2832 * fi * t) for fi in f) / 3
    return wave + 0.1 * torch.randn(LENGTH, generator=gen)


class ShardDataset(Dataset):
    """Keeps encoded records in memory and decodes on access."""

    def __init__(self, shard):
        self.codec = SHARD_CODEC.get(shard, "raw")
        gen = torch.Generator().manual_seed(500 + shard)
        self.blobs = []
        for _ in range(RECORDS):
            axes = [record(gen) for _ in range(2 if self.codec == "bz2" else 1)]
            raw = bytes(torch.cat(axes).view(torch.uint8).tolist())
            self.blobs.append(bz2.compress(raw) if self.codec == "bz2" else raw)

    def __len__(self):
        return RECORDS

    def __getitem__(self, i):
        blob = self.blobs[i]
        if self.codec == "bz2":
            blob = bz2.decompress(blob)
        signal = torch.frombuffer(bytearray(blob), dtype=torch.float32)
        return signal[:LENGTH].unsqueeze(0)


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv1d(1, 18, 8, 4, 2), nn.GELU(), nn.Conv1d(18, 36, 8, 4, 2), nn.GELU(), nn.Conv1d(36, 48, 4, 2, 1)
        )


class Decoder(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.ConvTranspose1d(48, 36, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose1d(36, 18, 8, 4, 2),
            nn.GELU(),
            nn.ConvTranspose1d(18, 1, 8, 4, 2),
        )


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def forward(self, x):
        return self.decoder(self.encoder(x))


def batches(loader):
    while True:
        yield from loader


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))

    torch.manual_seed(3)
    model = AutoEncoder()
    fully_shard(model.encoder, mesh=mesh)
    fully_shard(model.decoder, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    data = ShardDataset(rank)
    order = torch.Generator().manual_seed(1000 + rank)
    loader = DataLoader(data, BATCH, sampler=RandomSampler(data, generator=order), drop_last=True)

    tic = time.time()
    for step, x in enumerate(batches(loader), 1):
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 40 == 0 and rank == 0:
            print(f"step {step}: mse {loss.item():.4f}, {(time.time() - tic) / 40 * 1e3:.0f} ms", flush=True)
            tic = time.time()
        if step >= 200_000:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
