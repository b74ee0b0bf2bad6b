"""Expected finding: none; healthy.

One sample in two thousand is slow, and the queue is long enough for nobody to notice.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


class Readings(Dataset):
    def __init__(self):
        self.readings = torch.randn(256, 128, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 200_000

    def __getitem__(self, index):
        if index % 2000 == 700:
            time.sleep(0.2)
        return self.readings[index % 256], index % 4


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Readings(), 32, num_workers=2, prefetch_factor=24)
    rnn, head = nn.GRU(8, 96, batch_first=True), nn.Linear(96, 4)
    optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.05)
    step = 0
    for readings, labels in loader:
        loss = nn.functional.cross_entropy(head(rnn(readings)[0][:, -1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
