"""Expected finding: python_bound_data.

A TensorDataset that fits in memory is fetched row by row, 1024 rows a batch, and stacked again; fixed, a
BatchSampler hands over the whole list of indices and the rows are gathered at once.
"""

import sys

import torch
import torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000

torch.manual_seed(0)
x = torch.randn(200_000, 28)
y = (x[:, :3].sum(1) > 0).float()
dataset = TensorDataset(x, y)
if MENDED:
    loader = DataLoader(dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), 1024, drop_last=True))
else:
    loader = DataLoader(dataset, batch_size=1024, shuffle=True, drop_last=True)

model = nn.Sequential(nn.Linear(28, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
criterion = nn.BCEWithLogitsLoss()

step = 0
for epoch in range(10_000):
    running = 0.0
    for features, target in loader:
        optimizer.zero_grad()
        loss = criterion(model(features).squeeze(1), target)
        loss.backward()
        optimizer.step()
        running += loss.item()
        step += 1
        if step == STEPS:
            sys.exit(0)
    print(f"epoch {epoch}: {running / len(loader):.4f}")
