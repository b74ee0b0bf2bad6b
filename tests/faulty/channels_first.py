"""Expected finding: channels_first.

Depthwise convolutions in the default channels-first layout on a processor that prefers channels-last; fixed,
model and images are laid out channels-last.
"""

import sys

import torch
from torch import nn

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
LAYOUT = torch.channels_last if MENDED else torch.contiguous_format


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x + torch.relu(self.mix(self.spatial(x)))


class ConvNet(nn.Module):
    def __init__(self, channels=64, depth=4, num_classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 4, stride=4)
        self.blocks = nn.Sequential(*[Block(channels) for _ in range(depth)])
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.randn(512, 3, 64, 64)
labels = torch.randint(0, 10, (512,))
model = ConvNet().to(memory_format=LAYOUT)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)

step = 0
while step < STEPS:
    for x, y in zip(images.split(16), labels.split(16)):
        loss = nn.functional.cross_entropy(model(x.to(memory_format=LAYOUT)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step >= STEPS:
            break
    print(step, loss.item())
