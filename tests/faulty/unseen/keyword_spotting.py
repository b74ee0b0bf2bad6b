"""Expected finding: waiting_samples.

All four workers read the recordings through one shared file handle behind one lock, on
storage with 3 ms latency, so they queue up for each other instead of working.
"""
import argparse
import multiprocessing as mp
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLIPS, LENGTH = 1500, 4000
PATH = os.path.join(tempfile.gettempdir(), "keyword_clips_v1.raw")
LATENCY = 0.003  # the recordings lie on a network mount; simulated here


def write_clips():
    if os.path.exists(PATH) and os.path.getsize(PATH) == CLIPS * LENGTH * 2:
        return
    rng = np.random.default_rng(0)
    (rng.standard_normal((CLIPS, LENGTH)) * 3000).astype(np.int16).tofile(PATH)


class SharedHandle:
    """One handle for everybody: seek and read must not be interleaved."""

    def __init__(self, path):
        self.file = open(path, "rb", buffering=0)
        self.lock = mp.Lock()

    def read(self, offset, size):
        with self.lock:
            time.sleep(LATENCY)
            self.file.seek(offset)
            return self.file.read(size)


class PositionalHandle:
    """Reads at an offset without moving a shared position, so needs no lock."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY)

    def read(self, offset, size):
        time.sleep(LATENCY)
        return os.pread(self.fd, size, offset)


class Keywords(Dataset):
    def __init__(self, handle):
        self.handle = handle

    def __len__(self):
        return CLIPS * 20

    def __getitem__(self, i):
        raw = self.handle.read((i % CLIPS) * LENGTH * 2, LENGTH * 2)
        wave = np.frombuffer(raw, dtype=np.int16).astype(np.float32) / 32768
        return wave[None], i % 10


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(1, 32, 80, stride=16)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv1d(32, 48, 3, stride=2), nn.ReLU(), nn.Conv1d(48, 64, 3, stride=2))
        self.head = nn.Linear(64, 10)

    def forward(self, wave):
        return self.head(self.body(self.front(wave)).relu().mean(-1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    write_clips()

    handle = PositionalHandle(PATH) if args.fixed else SharedHandle(PATH)
    loader = DataLoader(Keywords(handle), batch_size=16, shuffle=True, num_workers=4)
    net = Spotter()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    taken = 0
    start = time.perf_counter()
    while taken < args.steps:
        for wave, word in loader:
            loss = F.cross_entropy(net(wave), word)
            opt.zero_grad()
            loss.backward()
            opt.step()
            taken += 1
            if taken % 100 == 0:
                print(f"[{taken}] {loss.item():.3f}", flush=True)
            if taken >= args.steps:
                break
    print(f"{taken} steps took {time.perf_counter() - start:.2f} s")
