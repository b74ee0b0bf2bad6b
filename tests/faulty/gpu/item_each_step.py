"""Expected finding: sync_points.

The loss, the accuracy, and the norms of every layer's weight and gradient are read with .item() each step, and each
of the 66 reads waits until the GPU has caught up; fixed, their sums stay on the device and are read every 50
steps. On an H100 host and GPU both take about 4 ms a step when neither waits (130 operations at 15 us, their
backward, and 64 norms; kernels of 10 us); a read takes about 25 us, 1.6 ms in all, and with its queue drained twice
the GPU idles for 1 ms more.
"""

import argparse

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers):
            x = x + torch.relu(layer(norm(x)))
        return self.out(x)


def main(args):
    batch, width, depth = (32, 32, 4) if args.small else (2048, 1024, 32)
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    data = torch.randn(16 * batch, width, device=device)
    labels = torch.randint(0, 10, (16 * batch,), device=device)
    model = Net(width, depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def read(value):
        return value.detach() if args.fixed else value.item()

    sums = torch.zeros(2 + 2 * depth, device=device if args.fixed else "cpu")
    for step in range(1, args.steps + 1):
        start = step * batch % len(data)
        x, y = data[start : start + batch], labels[start : start + batch]
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        values = [read(loss), read((output.argmax(1) == y).float().mean())]
        optimizer.zero_grad()
        loss.backward()
        for layer in model.layers:
            values.append(read(layer.weight.detach().norm()))
            values.append(read(layer.weight.grad.norm()))
        optimizer.step()
        sums += torch.stack(values) if args.fixed else torch.tensor(values)
        if step % 50 == 0:
            loss, accuracy, *norms = (sums / 50).tolist()
            print(f"step {step} loss {loss:.3f} accuracy {accuracy:.3f} largest norm {max(norms):.3f}", flush=True)
            sums.zero_()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    main(parser.parse_args())
