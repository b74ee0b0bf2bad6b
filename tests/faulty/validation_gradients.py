"""Expected finding: validation_gradients.

Validation runs without torch.no_grad(), so every operation records a graph that nobody walks back; fixed, it
runs under no_grad.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        gate = (x * self.scale + self.shift).sigmoid()
        return x + gate * (x + self.bias)


class DeepGates(nn.Module):
    def __init__(self, width=24, depth=32):
        super().__init__()
        self.first = nn.Linear(12, width)
        self.gates = nn.ModuleList(Gate(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.first(x)
        for gate in self.gates:
            x = gate(x) * 0.5
        return self.head(self.norm(x))


def evaluate(model, criterion, x, y):
    model.eval()
    total = 0.0
    for xs, ys in zip(x.split(40), y.split(40)):
        total += criterion(model(xs), ys).item()
    return total / len(x.split(40))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.randn(400, 12), torch.randint(5, (400,))
    x_val, y_val = torch.randn(2000, 12), torch.randint(5, (2000,))
    model, criterion = DeepGates(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
    for epoch in range(args.steps // len(loader)):
        model.train()
        for xs, ys in loader:
            loss = criterion(model(xs), ys)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.set_grad_enabled(not args.fixed):
            val = evaluate(model, criterion, x_val, y_val)
        print(f"epoch {epoch} val loss {val:.3f}")


if __name__ == "__main__":
    main()
