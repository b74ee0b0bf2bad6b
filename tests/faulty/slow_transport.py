"""Expected finding: slow_transport.

Two workers cut windows of a long recording and hand them over as float64, 33 MB a batch, while the model needs every
tenth value; fixed, the workers hand over what the model reads.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
WINDOW, BATCH, EVERY = 65_536, 64, 16


class Windows(Dataset):
    def __init__(self):
        self.recording = np.random.default_rng(0).standard_normal(4_000_000)

    def __len__(self):
        return 200_000

    def __getitem__(self, index):
        start = index * 17 % (len(self.recording) - WINDOW)
        window = self.recording[start : start + WINDOW]
        if FIXED:
            window = window[::EVERY].astype(np.float32)
        return torch.from_numpy(window), index % 3


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Windows(), BATCH, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(WINDOW // EVERY, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    for windows, labels in loader:
        if not FIXED:
            windows = windows[:, ::EVERY].float()
        loss = nn.functional.cross_entropy(model(windows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
