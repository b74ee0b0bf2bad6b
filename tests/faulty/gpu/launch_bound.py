"""Expected finding: launch_bound.

An LSTM written by hand launches a dozen tiny kernels for each of 64 time steps; fixed, nn.LSTM does the same in
one call to cuDNN. On an H100 the 770 operations of the forward take the host about 12 us each and the backward
about as much again, 20 ms in all, for kernels of 3 us; cuDNN needs about 2 ms.
"""

import argparse

import torch
from torch import nn


class HandLSTM(nn.Module):
    def __init__(self, num_inputs, num_hidden, batch_first=True):
        super().__init__()
        self.num_hidden = num_hidden
        self.from_input = nn.Linear(num_inputs, 4 * num_hidden)
        self.from_state = nn.Linear(num_hidden, 4 * num_hidden)

    def forward(self, x):
        h = c = x.new_zeros(len(x), self.num_hidden)
        states = []
        for gates in self.from_input(x).unbind(1):
            add, keep, new, show = (gates + self.from_state(h)).chunk(4, dim=1)
            c = torch.sigmoid(keep) * c + torch.sigmoid(add) * torch.tanh(new)
            h = torch.sigmoid(show) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, dim=1), (h, c)


class LanguageModel(nn.Module):
    def __init__(self, kind, vocabulary, width):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = kind(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        states, _ = self.rnn(self.embed(tokens))
        return self.out(states)


def main(args):
    vocabulary, batch, length, width = (32, 4, 48, 8) if args.small else (1024, 64, 64, 256)
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    text = torch.randint(vocabulary, (64 * batch, length + 1), device=device)
    model = LanguageModel(nn.LSTM if args.fixed else HandLSTM, vocabulary, width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        start = step * batch % len(text)
        tokens = text[start : start + batch]
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    main(parser.parse_args())
