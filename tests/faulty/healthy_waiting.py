"""Expected finding: none; healthy.

Samples wait for a server, but twelve workers wait at the same time, and a batch is always there when training asks.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


class Remote(Dataset):
    def __init__(self):
        self.rows = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return self.rows[index % 512], index % 16


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Remote(), 32, shuffle=True, num_workers=12)
    rnn, head = nn.GRU(8, 96, batch_first=True), nn.Linear(96, 16)
    optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.05)
    step = 0
    for rows, labels in loader:
        loss = nn.functional.cross_entropy(head(rnn(rows.view(-1, 128, 8))[0][:, -1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
