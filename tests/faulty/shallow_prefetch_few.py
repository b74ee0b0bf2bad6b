"""Expected finding: shallow_prefetch.

Every 40th batch holds a video that takes its worker half a second, and one batch lies ready; fixed, thirty-two do.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
BATCH, LONG_EVERY = 16, 16 * 40


class Clips(Dataset):
    def __init__(self):
        self.clips = torch.randn(64, 16, 32, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return LONG_EVERY * 400

    def __getitem__(self, index):
        if index % LONG_EVERY == 100:
            time.sleep(0.5)  # a long one: the decoder seeks
        return self.clips[index % 64], index % 6


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Clips(), BATCH, num_workers=2, prefetch_factor=32 if FIXED else 1)
    model = nn.GRU(32, 128, batch_first=True)
    head = nn.Linear(128, 6)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
    step = 0
    for clips, labels in loader:
        states, _ = model(clips)
        loss = nn.functional.cross_entropy(head(states[:, -1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
