"""Expected finding: none.

Gradients of four micro-batches are added up before each optimizer step; a worker prepares them in the meantime.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
ACCUMULATE = 4


class Reviews(Dataset):
    def __init__(self):
        self.words = torch.randint(2000, (4096, 64), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 400_000

    def __getitem__(self, index):
        return self.words[index % 4096], index % 4096 % 2


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(2000, 48)
        self.rnn = nn.GRU(48, 128, batch_first=True, bidirectional=True)
        self.out = nn.Linear(256, 2)

    def forward(self, words):
        return self.out(self.rnn(self.embed(words))[0].mean(1))


def bfloat16_is_faster(model, words):
    """Whether this processor trains the model clearly faster in bfloat16."""
    seconds = {}
    for enabled in (False, True, False, True):
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = model(words).sum()
        torch.autograd.grad(loss, list(model.parameters()))
        seconds[enabled] = time.perf_counter() - start
    return seconds[True] < 0.95 * seconds[False]


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.bfloat16 = bfloat16_is_faster(model, loader.dataset.words[:32])
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        self.criterion = nn.CrossEntropyLoss()

    def run(self, steps):
        done = 0
        while done < steps:
            for number, (words, labels) in enumerate(self.loader, start=1):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bfloat16):
                    loss = self.criterion(self.model(words), labels) / ACCUMULATE
                loss.backward()
                if number % ACCUMULATE == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    done += 1
                    if done >= steps:
                        break


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Reviews(), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True
    )
    Trainer(Classifier(), loader).run(STEPS)
