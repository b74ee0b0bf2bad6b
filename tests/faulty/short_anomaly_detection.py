"""Expected finding: anomaly_detection.

Thirty steps of a recurrent network, with anomaly detection left on from a search for a NaN; fixed, off.
"""

import sys

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 30


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.gate = nn.Linear(48, 32), nn.Linear(48, 32)

    def forward(self, x):
        state = x.new_zeros(len(x), 32)
        for t in range(x.shape[1]):
            both = torch.cat([x[:, t], state], 1)
            gate = torch.sigmoid(self.gate(both))
            state = gate * state + (1 - gate) * torch.tanh(self.mix(both))
        return state


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(not FIXED)
    model, head = Cell(), nn.Linear(32, 1)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    series = torch.randn(STEPS * 32, 80, 16)
    for x in series.split(32):
        loss = (head(model(x))[:, 0] - x.mean((1, 2))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


main()
