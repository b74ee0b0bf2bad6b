"""Expected finding: zero_grad_in_place.

zero_grad(set_to_none=False) fills the gradients of large weights with zeros, to which backward then has to add;
mended, the default set_to_none=True.
"""

import sys

import torch
from torch import nn

MENDED = "--mended" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000

torch.manual_seed(0)
torch.set_num_threads(1)
layers = []
for _ in range(8):
    layers += [nn.Linear(1024, 1024), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(1024, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

data = torch.randn(7680, 1024) + 3
data = (data - data.mean(0)) / data.std(0)
target = torch.randn(7680, 16)

for step in range(STEPS):
    begin = (step * 4) % 7680
    optimizer.zero_grad(set_to_none=MENDED)
    loss = nn.functional.mse_loss(model(data[begin : begin + 4]), target[begin : begin + 4])
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print("step", step, "loss", loss.item())
