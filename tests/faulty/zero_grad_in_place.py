"""Expected finding: zero_grad_in_place.

zero_grad(set_to_none=False) fills the gradient of a large embedding with zeros, to which backward then has to add;
fixed, the default set_to_none=True.
"""

import sys

import torch
from torch import nn

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000

torch.manual_seed(0)
torch.set_num_threads(1)
VISITORS, PAGES = 60_000, 300_000
model = nn.Sequential(nn.EmbeddingBag(VISITORS, 64, mode="mean"), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

visitors = (torch.rand(PAGES, 20) ** 3 * VISITORS).long()  # a few visit most pages
target = torch.randn(PAGES, 16)

for step in range(STEPS):
    rows = slice(step * 16 % PAGES, step * 16 % PAGES + 16)
    optimizer.zero_grad(set_to_none=MENDED)
    loss = nn.functional.mse_loss(model(visitors[rows]), target[rows])
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print("step", step, "loss", loss.item())
