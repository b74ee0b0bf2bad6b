"""Expected finding: shallow_prefetch.

One document in two thousand is very long and holds its worker up for many steps, while only four batches are
prepared ahead; mended, prefetch_factor=32 bridges the gap.
"""

import bz2
import random
import sys
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--mended" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
BATCH, LONG_EVERY, LONG_BYTES = 32, 32 * 60, 3_000_000


def hashed_words(text, length=36):
    """The first words of a text as hashes, filled up with its checksum."""
    words = [zlib.crc32(word) % 4096 for word in text[:400].split()[:length]]
    return torch.tensor(words + [zlib.crc32(text) % 4096] * (length - len(words)))


class Documents(Dataset):
    """Compressed, in the order of their dates."""

    def __init__(self):
        self.short = [bz2.compress(b"note %d of the day " % i * 3) for i in range(LONG_EVERY)]
        self.long = bz2.compress(random.Random(0).randbytes(LONG_BYTES))

    def __len__(self):
        return LONG_EVERY * 500

    def __getitem__(self, index):
        packed = self.long if index % LONG_EVERY == 400 else self.short[index % LONG_EVERY]
        return hashed_words(bz2.decompress(packed)), index % 4


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
    loader = DataLoader(Documents(), BATCH, num_workers=2, prefetch_factor=32 if MENDED else 2)
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
