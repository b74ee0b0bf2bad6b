"""Expected finding: double_precision.

NumPy made the data float64, and the model was turned to .double() to fit it; fixed, both are float32.
"""

import argparse

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
dtype = torch.float32 if args.fixed else torch.float64

torch.manual_seed(0)
torch.set_num_threads(1)
rng = np.random.default_rng(0)
inputs = torch.from_numpy(rng.standard_normal((10_240, 60))).to(dtype)
targets = torch.from_numpy(rng.standard_normal((10_240, 1))).to(dtype)

model = nn.Sequential(
    nn.Linear(60, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 1)
).to(dtype)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

for step in range(args.steps):
    start = step * 512 % len(inputs)
    prediction = model(inputs[start : start + 512])
    loss = nn.functional.mse_loss(prediction, targets[start : start + 512])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 200 == 0:
        print(f"step {step:5d}  loss {loss.item():.4f}")
