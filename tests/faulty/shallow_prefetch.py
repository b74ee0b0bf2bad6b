"""Expected finding: shallow_prefetch.

One document in two thousand comes from a slow archive and holds its worker up for many steps, while only four
batches are prepared ahead; fixed, prefetch_factor=32 bridges the gap.
"""

import bz2
import sys
import time
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
BATCH, LATE_EVERY, ARCHIVE_SECONDS = 32, 32 * 60, 0.15


def hashed_words(text, length=36):
    """The first words of a text as hashes, filled up with its checksum."""
    words = [zlib.crc32(word) % 4096 for word in text[:400].split()[:length]]
    return torch.tensor(words + [zlib.crc32(text) % 4096] * (length - len(words)))


class Documents(Dataset):
    """Compressed, in the order of their dates."""

    def __init__(self):
        self.packed = [bz2.compress(b"note %d of the day " % i * 3) for i in range(LATE_EVERY)]

    def __len__(self):
        return LATE_EVERY * 500

    def __getitem__(self, index):
        number = index % LATE_EVERY
        if number == 400:
            time.sleep(ARCHIVE_SECONDS)  # until the archive answers
        return hashed_words(bz2.decompress(self.packed[number])), index % 4


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
