"""Expected finding: slow_read.

Every sample reads a whole 16 MB shard from a cold disk to use one row of it; fixed, it reads that row alone.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
FOLDER = Path(tempfile.gettempdir()) / "hasten-faulty-slow_read"
SHARDS, ROWS, WIDTH = 8, 4096, 1024


def prepare():
    FOLDER.mkdir(exist_ok=True)
    for number in range(SHARDS):
        path = FOLDER / f"shard{number}.bin"
        if not path.exists():
            rows = np.random.default_rng(number).standard_normal((ROWS, WIDTH)).astype(np.float32)
            with open(path.with_suffix(f".{os.getpid()}"), "wb") as file:
                rows.tofile(file)
                os.fsync(file.fileno())
            os.replace(file.name, path)


class Shards(Dataset):
    """Rows spread over shards that are far larger than memory in the real job: nothing stays cached."""

    def __len__(self):
        return SHARDS * ROWS

    def __getitem__(self, index):
        path = FOLDER / f"shard{index % SHARDS}.bin"
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        count, skip = (WIDTH, index // SHARDS * WIDTH) if MENDED else (-1, 0)
        rows = np.fromfile(path, dtype=np.float32, count=count, offset=4 * skip).reshape(-1, WIDTH)
        return torch.from_numpy(rows[0 if MENDED else index // SHARDS].copy()), index % 10


def main():
    prepare()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Shards(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    step = 0
    while step < STEPS:
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(rows), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step == STEPS:
                break


if __name__ == "__main__":
    main()
