"""Expected finding: none.

Data that lies in memory and is cut into batches by the script itself: there is nothing for a worker to do. It computes in
bfloat16 where that is faster.
"""

import sys
import time

import torch
from torch import nn

STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000


def bfloat16_is_faster():
    """Whether this processor multiplies bfloat16 matrices clearly faster than float32 ones."""
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(512, 512, dtype=dtype)
        matrix @ matrix
        start = time.perf_counter()
        for _ in range(10):
            matrix @ matrix
        seconds.append(time.perf_counter() - start)
    return seconds[1] < 0.8 * seconds[0]


torch.set_num_threads(1)
bfloat16 = bfloat16_is_faster()
torch.manual_seed(0)
readings = torch.cumsum(torch.randn(20_000, 24, 8), dim=1)
inputs, targets = readings[:, :-1], readings[:, -1]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 96, batch_first=True)
        self.out = nn.Linear(96, 8)

    def forward(self, x):
        _, last = self.rnn(x)
        return self.out(last[-1])


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=100_001)
step = 0
while step < STEPS:
    for rows in torch.randperm(len(inputs)).split(250):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            loss = nn.functional.smooth_l1_loss(model(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        if step >= STEPS:
            break
    print(f"step {step}: loss {loss.item():.4f}")
