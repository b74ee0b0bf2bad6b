"""Expected finding: checkpoint_often.

The model and the optimizer are saved after every step; fixed, once in two hundred steps.
"""

import os
import sys
import tempfile

import torch
from torch import nn

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
SAVE_EVERY = 200 if MENDED else 1
FOLDER = os.path.join(tempfile.gettempdir(), "hasten-faulty-checkpoint_often")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(30_000, 64, sparse=True)
        self.rest = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 30))

    def forward(self, words):
        return self.rest(self.embed(words))


def save(model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, os.path.join(FOLDER, "last.pt"))


if __name__ == "__main__":
    os.makedirs(FOLDER, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = torch.randint(30_000, (10_000, 24))
    tags = torch.randint(30, (10_000,))
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        rows = torch.randint(10_000, (512,))
        loss = nn.functional.cross_entropy(model(words[rows]), tags[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAVE_EVERY == 0:
            save(model, optimizer, step)
