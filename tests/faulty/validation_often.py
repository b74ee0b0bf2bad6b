"""Expected finding: validation_often.

The whole validation set is gone through every four steps; fixed, once an epoch of a hundred steps.
"""

import sys

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
VALIDATE_EVERY = 100 if MENDED else 4


def whole_batches(dataset, batch_size, sampler):
    return DataLoader(dataset, batch_size=None, sampler=BatchSampler(sampler, batch_size, drop_last=False))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = TensorDataset(torch.randn(25_600, 40), torch.randint(6, (25_600,)))
    held_out = TensorDataset(torch.randn(10_240, 40), torch.randint(6, (10_240,)))
    train_loader = whole_batches(train, 256, RandomSampler(train))
    val_loader = whole_batches(held_out, 512, SequentialSampler(held_out))
    model = nn.Sequential(
        nn.Linear(40, 192),
        nn.LayerNorm(192),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(192, 192),
        nn.GELU(),
        nn.Linear(192, 6),
    )
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    step, best = 0, 0.0
    while True:
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step % VALIDATE_EVERY == 0:
                best = max(best, validate(model, val_loader))
            if step >= STEPS:
                print(f"best accuracy {best:.3f}")
                return


if __name__ == "__main__":
    main()
