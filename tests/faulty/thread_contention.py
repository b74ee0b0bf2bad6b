"""Expected finding: thread_contention.

The model computes on two OpenMP threads, which wait for each other by spinning, while the loader's workers need
the same two cores; fixed, torch.set_num_threads(1).
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


class Signals(Dataset):
    def __init__(self):
        self.signals = np.random.default_rng(0).standard_normal((256, 4096)).astype(np.float32)

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        signal = self.signals[index % 256]
        spectrum = np.fft.rfft(signal)
        spectrum[np.random.randint(1, 2000) :] *= 0.5
        signal = np.fft.irfft(spectrum)
        return torch.from_numpy(signal[:256].astype(np.float32)), index % 8


def main():
    if MENDED:
        torch.set_num_threads(1)
    loader = DataLoader(Signals(), batch_size=64, shuffle=True, num_workers=2, drop_last=True)
    blocks = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())]
    model = nn.Sequential(*blocks, nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        for signal, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(signal), label)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= STEPS:
                return


if __name__ == "__main__":
    main()
