"""Expected finding: sync_points.

The accuracy is counted with two .item() calls a sample each step; fixed, the comparison stays in tensors.
"""

import sys

import torch
from torch import nn

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(20_480, 64)
targets = torch.randint(0, 10, (20_480,))

model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

step = 0
while step < STEPS:
    order = torch.randperm(len(inputs))
    correct = seen = 0
    for rows in order.split(512):
        x, y = inputs[rows], targets[rows]
        optimizer.zero_grad()
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        predicted = output.argmax(dim=1)
        if MENDED:
            correct += (predicted == y).sum()
        else:
            for i in range(len(y)):
                if predicted[i].item() == y[i].item():
                    correct += 1
        seen += len(y)
        step += 1
        if step >= STEPS:
            break
    print(f"step {step} accuracy {float(correct) / seen:.3f}")
