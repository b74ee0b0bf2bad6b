"""Expected finding: slow_collate.

The collate function pads the sentences token by token in nested Python loops; fixed, pad_sequence does it.
"""

import random
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


class Sentences(Dataset):
    def __init__(self):
        rng = random.Random(0)
        self.items = [
            (torch.tensor([rng.randrange(1, 5000) for _ in range(rng.randint(20, 80))]), rng.randrange(2))
            for _ in range(2000)
        ]

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.items[index % 2000]


def collate(samples):
    longest = max(len(tokens) for tokens, _ in samples)
    batch = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, (tokens, _) in enumerate(samples):
        for column, token in enumerate(tokens):
            batch[row, column] = token
    return batch, torch.tensor([label for _, label in samples])


def collate_padded(samples):
    tokens, labels = zip(*samples)
    return pad_sequence(tokens, batch_first=True), torch.tensor(labels)


class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5000, 64, padding_idx=0)
        self.hidden = nn.Linear(64, 256)
        self.out = nn.Linear(256, 2)

    def forward(self, tokens):
        return self.out(torch.relu(self.hidden(self.embed(tokens).mean(1))))


if __name__ == "__main__":
    torch.set_num_threads(1)
    loader = DataLoader(
        Sentences(),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        collate_fn=collate_padded if MENDED else collate,
    )
    model = Sentiment()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while step < STEPS:
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step >= STEPS:
                break
