"""Expected finding: slow_sampler.

Sentences are grouped by length: the sampler sorts a pool for every batch, in the training process, while two workers idle;
fixed, it sorts once.
"""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
BATCH = 32


class Sentences(Dataset):
    def __init__(self):
        self.lengths = [5 + i * 7919 % 40 for i in range(60_000)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        length = self.lengths[index]
        return torch.arange(index, index + length) % 5000, length % 3


class SimilarLengths(Sampler):
    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        left = list(range(len(self.lengths)))
        random.shuffle(left)
        if FIXED:
            left.sort(key=self.lengths.__getitem__)
        while len(left) >= BATCH:
            if not FIXED:
                left.sort(key=lambda i: (self.lengths[i], random.random()))
            start = random.randrange(len(left) - BATCH + 1)
            yield left[start : start + BATCH]
            del left[start : start + BATCH]


def padded(batch):
    words = nn.utils.rnn.pad_sequence([sentence for sentence, _ in batch], batch_first=True)
    return words, torch.tensor([label for _, label in batch])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Sentences()
    loader = DataLoader(data, batch_sampler=SimilarLengths(data.lengths), collate_fn=padded, num_workers=2)
    embed, rnn, head = nn.Embedding(5000, 64), nn.GRU(64, 128, batch_first=True), nn.Linear(128, 3)
    optimizer = torch.optim.SGD([*embed.parameters(), *rnn.parameters(), *head.parameters()], lr=0.05)
    step = 0
    for words, labels in loader:
        loss = nn.functional.cross_entropy(head(rnn(embed(words))[0][:, -1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
