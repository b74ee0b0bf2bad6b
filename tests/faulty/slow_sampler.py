"""Expected finding: slow_sampler.

A batch sampler balances the classes of each batch with Python's random.choices over all samples; fixed, it draws from the
indices of each class.
"""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
SAMPLES, CLASSES, BATCH = 60_000, 10, 64


class BalancedBatches:
    def __init__(self, labels):
        self.labels = labels
        self.by_class = [[i for i, label in enumerate(labels) if label == c] for c in range(CLASSES)]

    def __len__(self):
        return 5000

    def __iter__(self):
        for _ in range(len(self)):
            if FIXED:
                yield [random.choice(self.by_class[random.randrange(CLASSES)]) for _ in range(BATCH)]
            else:
                counts = [len(indices) for indices in self.by_class]
                weights = [1 / counts[label] for label in self.labels]
                yield random.choices(range(SAMPLES), weights, k=BATCH)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    labels = torch.arange(SAMPLES) % 55 % CLASSES
    data = TensorDataset(torch.randn(SAMPLES, 128), labels)
    loader = DataLoader(data, batch_sampler=BalancedBatches(labels.tolist()))
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                return


if __name__ == "__main__":
    main()
