"""A small training whose steps are all alike, for comparisons of it with itself; and fixes planted in it.

Run as a script it trains for ever, or for --steps. Imported by name in its own process it is where `honesty.py` finds the
installers that it plants.
"""

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset


def slower(handle: Any, share: float) -> None:
    """Each step takes so much longer, by its own last duration; the time is computed, not slept."""
    last: list[float] = []

    def after(*_: object) -> None:
        if last:
            until = time.perf_counter() + share * (time.perf_counter() - last[0])
            while time.perf_counter() < until:
                pass
        last[:] = [time.perf_counter()]

    handle.patches.on_undo(register_optimizer_step_post_hook(after).remove)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    wanted = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # Activations far below the size from which the heap gives memory back: what that costs differs from launch to launch.
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    data = TensorDataset(torch.randn(512, 256), torch.randint(0, 10, (512,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    step = 0
    while True:
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            step += 1
            if step == wanted.steps:
                return


if __name__ == "__main__":
    main()
