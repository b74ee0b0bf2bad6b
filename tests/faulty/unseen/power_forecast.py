"""Expected finding: validation_gradients.

Validation after each epoch runs with autograd on and keeps the loss tensors in a list, so every
validation batch builds a graph that stays in memory; the whole run has 30 steps.
"""
import argparse
import contextlib
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PAST, FUTURE = 96, 24


def make_series(days, seed):
    generator = torch.Generator().manual_seed(seed)
    hours = torch.arange(days * 24, dtype=torch.float32)
    load = torch.sin(hours * 0.2618) + 0.3 * torch.sin(hours * 0.0374)
    load = load + 0.1 * torch.randn(len(hours), generator=generator)
    windows = load.unfold(0, PAST + FUTURE, 1)
    return TensorDataset(windows[:, :PAST].contiguous(), windows[:, PAST:].contiguous())


class Mixer(nn.Module):
    """Treats each hour as a token and mixes tokens with learned decays."""

    def __init__(self, width=48, depth=4):
        super().__init__()
        self.enter = nn.Linear(1, width)
        self.decay = nn.Parameter(torch.rand(depth, width))
        self.scale = nn.Parameter(torch.ones(depth, width))
        self.leave = nn.Linear(width, 1)
        self.out = nn.Linear(PAST, FUTURE)

    def forward(self, x):
        h = self.enter(x[..., None])
        for decay, scale in zip(self.decay, self.scale):
            moved = h.roll(1, dims=1) * torch.sigmoid(decay)
            mixed = torch.tanh(h + moved) * scale
            h = h + mixed * torch.sigmoid(h)
        return self.out(self.leave(h).squeeze(-1))


class Trainer:
    def __init__(self, fixed):
        self.fixed = fixed
        self.model = Mixer()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3, fused=True)
        self.criterion = nn.SmoothL1Loss()
        train, valid = make_series(60, 0), make_series(120, 1)
        self.train_loader = DataLoader(train, batch_size=128, shuffle=True, drop_last=True)
        self.valid_loader = DataLoader(valid, batch_size=256)
        self.step = 0

    def fit(self, steps):
        while self.step < steps:
            self.model.train()
            for past, future in self.train_loader:
                loss = self.criterion(self.model(past), future)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
                if self.step >= steps:
                    break
            print(f"step {self.step}: validation {self.validate():.4f}")

    def validate(self):
        self.model.eval()
        losses = []
        with torch.no_grad() if self.fixed else contextlib.nullcontext():
            for past, future in self.valid_loader:
                losses.append(self.criterion(self.model(past), future))
        return torch.stack(losses).mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = Trainer(args.fixed)
    began = time.perf_counter()
    trainer.fit(args.steps)
    print(f"{trainer.step} steps, {time.perf_counter() - began:.2f} s")
