"""Expected finding: launch_bound.

A recurrent cell written by hand runs a dozen tiny operations for each of 64 time steps; fixed, nn.LSTM does the
same in one call.
"""

import argparse

import torch
from torch import nn


class HandLSTM(nn.Module):
    def __init__(self, num_inputs, num_hidden, batch_first=True):
        super().__init__()
        self.num_hidden = num_hidden
        self.gates = nn.ModuleList(nn.Linear(num_inputs + num_hidden, num_hidden) for _ in range(4))

    def forward(self, x):
        h = c = x.new_zeros(len(x), self.num_hidden)
        states = []
        for t in range(x.shape[1]):
            both = torch.cat([x[:, t], h], dim=1)
            keep, add, new, show = [gate(both) for gate in self.gates]
            c = torch.sigmoid(keep) * c + torch.sigmoid(add) * torch.tanh(new)
            h = torch.sigmoid(show) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, dim=1), (h, c)


class Forecaster(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.out(states[:, -1])


def train(args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    series = torch.cumsum(torch.randn(1024, 65, 4), dim=1)
    model = Forecaster((nn.LSTM if args.fixed else HandLSTM)(4, 16, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        batch = series[torch.randint(len(series), (64,))]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[:, :-1]), batch[:, -1, :1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    train(parser.parse_args())
