"""Expected finding: default_stream_copy.

Pinned batches of 200 MB are copied without blocking the host, but on the stream that also computes, so the GPU
copies and computes in turn; fixed, a prefetcher copies the next batch on a stream of its own. On an H100, 200 MB
take 4 ms at 50 GB/s, beside 8 ms of computing (2.6 TFLOP in bfloat16 and 11 GB of memory traffic).
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """Whole batches in pinned memory, ready to be copied."""

    def __init__(self, shape, count=4):
        self.batches = [torch.randn(shape).pin_memory() for _ in range(count)]
        self.labels = [torch.randint(0, 10, shape[:1]).pin_memory() for _ in range(count)]

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        index %= len(self.batches)
        return self.batches[index], self.labels[index]


class Prefetcher:
    """Copies each batch on a stream of its own while the batch before it is computed."""

    def __init__(self, loader, device):
        self.loader, self.device, self.stream = loader, device, torch.cuda.Stream()

    def copy(self, batch):
        with torch.cuda.stream(self.stream):
            return batch and [tensor.to(self.device, non_blocking=True) for tensor in batch]

    def __iter__(self):
        batches = iter(self.loader)
        coming = self.copy(next(batches, None))
        while coming:
            computing = torch.cuda.current_stream()
            computing.wait_stream(self.stream)
            for tensor in coming:
                tensor.record_stream(computing)
            ready, coming = coming, self.copy(next(batches, None))
            yield ready


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def main(args):
    batch, patches, voxels, width, depth = (16, 16, 64, 16, 1) if args.small else (64, 768, 1024, 512, 4)
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(Volumes((batch, patches, voxels)), batch_size=None, shuffle=True)
    body = nn.Sequential(nn.Linear(voxels, width), *[Block(width) for _ in range(depth)]).to(device)
    head = nn.Linear(width, 10).to(device)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-4, fused=True)
    step = 0
    while True:
        for volumes, labels in Prefetcher(loader, device) if args.fixed else loader:
            volumes, labels = volumes.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(head(body(volumes).mean(1)), labels)
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
