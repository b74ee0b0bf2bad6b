"""Expected finding: too_many_workers.

Sixteen workers share two cores, and each unpacks every compressed chunk of the recording for itself; fixed, two
workers.
"""

import argparse
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, CHUNK = 32, 4096, 32 * 32


class Recording(Dataset):
    """Read from front to back; the last chunk that was unpacked stays at hand, as in any chunked file format."""

    def __init__(self, num_chunks=6):
        rng = np.random.default_rng(0)
        self.chunks = [
            zlib.compress(rng.integers(0, 12, (CHUNK, WIDTH), dtype=np.uint8).tobytes(), 1) for _ in range(num_chunks)
        ]
        self.open_chunk, self.rows = None, None

    def __len__(self):
        return CHUNK * 2000

    def __getitem__(self, index):
        chunk = index // CHUNK
        if chunk != self.open_chunk:
            packed = self.chunks[chunk % len(self.chunks)]
            self.rows = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(CHUNK, WIDTH)
            self.open_chunk = chunk
        return torch.from_numpy(self.rows[index % CHUNK].astype(np.float32)), index % 10


def main(args):
    torch.set_num_threads(1)
    num_workers = 2 if args.fixed else 16
    loader = DataLoader(Recording(), batch_size=BATCH, num_workers=num_workers)
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, (rows, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        if step >= args.steps:
            break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    main(parser.parse_args())
