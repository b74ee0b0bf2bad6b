"""Expected finding: script_bound.

get_batch() looks up every character of every window in Python at each step; fixed, the text is encoded once and
the windows are cut from a tensor.
"""

import random
import sys

import torch
import torch.nn as nn

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
text = "".join(random.choices("abcdefghijklmnopqrstuvwxyz ,.\n", k=200_000))
letters = sorted(set(text))
number = {letter: i for i, letter in enumerate(letters)}
data = torch.tensor([number[c] for c in text])
block_size, batch_size = 64, 256


def get_batch():
    starts = [random.randrange(len(text) - block_size - 1) for _ in range(batch_size)]
    if MENDED:
        windows = data[torch.tensor(starts)[:, None] + torch.arange(block_size + 1)]
    else:
        windows = torch.tensor([[number[c] for c in text[s : s + block_size + 1]] for s in starts])
    return windows[:, :-1], windows[:, -1]


class CharModel(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 16)
        self.head = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, vocabulary))

    def forward(self, x):
        return self.head(self.embed(x).mean(1))


model = CharModel(len(letters))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
for it in range(STEPS):
    x, y = get_batch()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if it % 500 == 0:
        print(f"iter {it}: loss {loss.item():.4f}")
