"""Expected finding: validation_gradients.

Three epochs of twelve steps, each followed by a validation that builds graphs; fixed, under torch.no_grad().
"""

import contextlib
import sys

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 36


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.gate = nn.Linear(32, 16), nn.Linear(32, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        state = x.new_zeros(len(x), 16)
        for t in range(x.shape[1]):
            both = torch.cat([x[:, t], state], 1)
            gate = torch.sigmoid(self.gate(both))
            state = gate * state + (1 - gate) * torch.tanh(self.mix(both))
        return self.head(state)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(192, 80, 16), torch.randint(0, 5, (192,))
    held_out, answers = torch.randn(3200, 80, 16), torch.randint(0, 5, (3200,))
    model = Cell()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < STEPS:
        model.train()
        for inputs, labels in zip(x.split(16), y.split(16)):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        model.eval()
        right = 0
        with torch.no_grad() if FIXED else contextlib.nullcontext():
            for inputs, labels in zip(held_out.split(16), answers.split(16)):
                right += (model(inputs).argmax(1) == labels).sum().item()
        print(f"step {step}: {right / len(answers):.1%}")


if __name__ == "__main__":
    main()
