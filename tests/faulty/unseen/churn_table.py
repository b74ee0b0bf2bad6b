"""Expected finding: too_many_workers.
Also right: worker_startup.

Eight loader workers for rows that only have to be picked out of an array in memory; starting
and feeding them costs more than they save in this run of 30 steps.
"""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Customers(Dataset):
    def __init__(self, rows=7680, columns=40):
        rng = np.random.default_rng(2)
        self.table = rng.standard_normal((rows, columns), dtype=np.float32)
        weight = rng.standard_normal(columns)
        self.left = (self.table @ weight > 0).astype(np.float32)

    def __len__(self):
        return len(self.table)

    def __getitem__(self, row):
        return self.table[row], self.left[row]


def build(columns=40):
    return nn.Sequential(
        nn.Linear(columns, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 320), nn.ReLU(), nn.Linear(320, 1)
    )


def main(argv=None):
    parser = argparse.ArgumentParser(description="who cancels next month?")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(1)

    workers = 0 if args.fixed else 8
    loader = DataLoader(
        Customers(), batch_size=args.batch_size, shuffle=True,
        num_workers=workers, persistent_workers=workers > 0,
    )
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    criterion = nn.BCEWithLogitsLoss()

    began = time.perf_counter()
    step = hits = seen = 0
    while step < args.steps:
        for rows, left in loader:
            logits = model(rows).squeeze(1)
            loss = criterion(logits, left)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += ((logits > 0) == (left > 0.5)).sum()
            seen += len(left)
            step += 1
            if step == args.steps:
                break
    print(f"accuracy {float(hits) / seen:.3f}, {step} steps, {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
