"""Expected finding: worker_startup.

Epochs are ten steps long and every one starts its workers anew, each of which has to build its index first;
fixed, persistent_workers=True.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def build_index(size):
    """What an annotation file takes to be parsed."""
    index = {}
    for number in range(size):
        index[f"image_{number:08d}"] = (number * 7919) % size
    return index


class Annotated(Dataset):
    def __init__(self):
        self.features = torch.randn(640, 64)
        self.index = None

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        if self.index is None:
            self.index = build_index(250_000)
        label = self.index[f"image_{i:08d}"] % 5
        return self.features[i], label


def main(args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Annotated(), batch_size=64, shuffle=True, num_workers=2, persistent_workers=args.fixed)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), *[nn.Linear(256, 256), nn.Tanh()] * 3, nn.Linear(256, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    main(parser.parse_args())
