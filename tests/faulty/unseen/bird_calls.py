"""Expected finding: thread_contention.

The thread count was written down on a 24 core server; on two cores 24 threads get in each
other's way in every small operation (for work this small one thread is quickest).
"""
import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--fixed", action="store_true")
opts = parser.parse_args()

THREADS = 1 if opts.fixed else 24
torch.set_num_threads(THREADS)
torch.manual_seed(1)

SPECIES = 30
RATE = 8000
BATCH = 16

# one second of field recording per call, all in memory
calls = torch.randn(600, RATE)
species = torch.randint(0, SPECIES, (600,))
window = torch.hann_window(256)


def spectrogram(wave):
    spectrum = torch.stft(wave, 256, hop_length=128, window=window, return_complex=True)
    return torch.log1p(spectrum.abs())


def mask_bands(spec):
    spec = spec.clone()
    for picture in spec:
        f = int(torch.randint(0, 100, ()))
        picture[f : f + 12] = 0
    return spec


class CallNet(nn.Module):
    def __init__(self, bands=129, width=96):
        super().__init__()
        self.norm = nn.LayerNorm(bands)
        self.inner = nn.ModuleList([nn.Linear(bands, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.attend = nn.Linear(width, 1)
        self.head = nn.Linear(width, SPECIES)

    def forward(self, spec):
        h = self.norm(spec.transpose(1, 2))
        for layer in self.inner:
            h = nn.functional.silu(layer(h))
        weight = torch.softmax(self.attend(h), dim=1)
        return self.head((h * weight).sum(1))


net = CallNet()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

began = time.perf_counter()
for step in range(opts.steps):
    pick = torch.randint(0, len(calls), (BATCH,))
    spec = mask_bands(spectrogram(calls[pick]))
    loss = nn.functional.cross_entropy(net(spec), species[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 100 == 0:
        print(step + 1, f"{loss.item():.3f}", flush=True)

print(f"{opts.steps} steps in {time.perf_counter() - began:.2f} s")
