"""Expected finding: slow_transform.

The audio is companded sample by sample in a Python loop inside __getitem__; fixed, NumPy does it at once.
"""

import math
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


def mu_law(wave):
    out = np.empty_like(wave)
    for i in range(len(wave)):
        out[i] = math.copysign(math.log1p(255 * abs(wave[i])) / math.log(256), wave[i])
    return out


def mu_law_numpy(wave):
    return np.copysign(np.log1p(255 * np.abs(wave)) / np.log(256), wave)


class Audio(Dataset):
    def __init__(self, num_clips=512, length=8000):
        self.clips = np.random.default_rng(0).uniform(-1, 1, (num_clips, length)).astype(np.float32)
        self.compand = mu_law_numpy if MENDED else mu_law

    def __len__(self):
        return len(self.clips) * 100

    def __getitem__(self, index):
        index = index % len(self.clips)
        wave = self.compand(self.clips[index])
        return torch.from_numpy(wave.astype(np.float32)).view(100, 80), index % 12


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(80, 64, batch_first=True)
        self.out = nn.Linear(64, 12)

    def forward(self, frames):
        _, hidden = self.rnn(frames)
        return self.out(hidden[-1])


def train():
    torch.set_num_threads(1)
    loader = DataLoader(Audio(), batch_size=16, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    model = Recogniser()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_fn = nn.CrossEntropyLoss()
    step = 0
    while True:
        for frames, labels in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(frames), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= STEPS:
                return


if __name__ == "__main__":
    train()
