"""Expected finding: shallow_prefetch.

One document in two thousand is very long and holds its worker up for many steps, while only four batches are
prepared ahead; mended, prefetch_factor=16 bridges the gap.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
BATCH, LONG_EVERY = 32, 32 * 60


def hashed_words(text, length=36):
    """The first words of a text as hashes; the checksum runs over all of it."""
    checksum = 0
    for character in text:
        checksum = (checksum * 31 + ord(character)) % 1_000_003
    words = [hash(word) % 4096 for word in text[:400].split()[:length]]
    words += [checksum % 4096] * (length - len(words))
    return torch.tensor(words)


class Documents(Dataset):
    """In the order of their dates."""

    def __init__(self):
        self.short = [f"note {i} of the day " * 3 for i in range(LONG_EVERY)]
        self.long = "minutes of the yearly meeting " * 40_000

    def __len__(self):
        return LONG_EVERY * 500

    def __getitem__(self, index):
        text = self.long if index % LONG_EVERY == 400 else self.short[index % LONG_EVERY]
        return hashed_words(text), index % 4


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4096, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, 4)

    def forward(self, words):
        return self.out(self.rnn(self.embed(words))[0][:, -1])


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Documents(), BATCH, num_workers=2, prefetch_factor=16 if MENDED else 2)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    for words, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if step >= STEPS:
            break
    print("last loss", loss.item())


if __name__ == "__main__":
    main()
