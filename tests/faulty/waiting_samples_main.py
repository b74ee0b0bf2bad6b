"""Expected finding: waiting_samples.

The collate function looks each batch up in a feature service, in the training process, and waits for its answer; fixed,
four workers wait while the model trains.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


class FeatureService:
    """Answers a request for the features of many users at once."""

    def __init__(self):
        self.features = torch.randn(4096, 256, generator=torch.Generator().manual_seed(0))

    def lookup(self, users):
        time.sleep(0.03)
        return self.features[users]


class Batches:
    def __init__(self):
        self.service = FeatureService()

    def __call__(self, users):
        users = torch.tensor(users)
        return self.service.lookup(users), users % 5


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    users = [i * 13 % 4096 for i in range(200_000)]
    loader = DataLoader(users, 64, shuffle=True, collate_fn=Batches(), num_workers=4 if FIXED else 0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
