"""Expected finding: slow_transport.

Batches are lists of dictionaries of Python numbers, pickled by the workers and unpickled in the training process; fixed,
collate_fn hands over one tensor a batch.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
EVENTS = 40


class Sessions(Dataset):
    """Clicks of visitors, as they were read from a log: shared dictionaries, cheap to look up."""

    def __init__(self):
        self.sessions = [
            [
                {"page": (i * 31 + k) % 997, "seconds": float(i % 7 + k), "referrer": f"site-{i}-{k}"}
                for k in range(EVENTS)
            ]
            for i in range(500)
        ]

    def __len__(self):
        return 500_000

    def __getitem__(self, index):
        return self.sessions[index % 500], index % 2


def as_they_are(batch):
    return batch


def as_tensors(batch):
    pages = torch.tensor([[event["page"] for event in events] for events, _ in batch])
    return pages, torch.tensor([label for _, label in batch])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Sessions(), 128, shuffle=True, num_workers=2, collate_fn=as_tensors if FIXED else as_they_are)
    model = nn.Sequential(nn.EmbeddingBag(1000, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    for batch in loader:
        pages, labels = batch if FIXED else as_tensors(batch)
        loss = nn.functional.cross_entropy(model(pages), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            return


if __name__ == "__main__":
    main()
