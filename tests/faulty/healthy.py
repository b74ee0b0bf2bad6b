"""Expected finding: none.

A small convolutional network on augmented images: one worker keeps up with ease, bfloat16 where that is
faster, channels-last, fused AdamW, validation without gradients once an epoch. The batch is small so that no
activation is large enough for the allocator to give its pages back after each step.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def bfloat16_is_faster():
    """Whether this processor multiplies bfloat16 matrices clearly faster than float32 ones."""
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(512, 512, dtype=dtype)
        matrix @ matrix
        start = time.perf_counter()
        for _ in range(10):
            matrix @ matrix
        seconds.append(time.perf_counter() - start)
    return seconds[1] < 0.8 * seconds[0]


class Crops(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randint(0, 256, (256, 3, 40, 40), dtype=torch.uint8, generator=generator)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = self.images[index % 256]
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        return (image.flip(2) if index % 2 else image), index % 256 % 10


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(128, 128, 3, padding=1) for _ in range(6))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        for conv in self.body:
            x = F.relu(x + conv(x))
        return self.head(x.mean((2, 3)))


def prepare(images):
    return (images.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def main(args):
    bfloat16 = bfloat16_is_faster()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    settings = dict(batch_size=8, num_workers=1, persistent_workers=True)
    train_loader = DataLoader(Crops(4_000, 0), shuffle=True, drop_last=True, **settings)
    val_loader = DataLoader(Crops(640, 1), **settings)
    model = ConvNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while True:
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
                loss = F.cross_entropy(model(prepare(images)), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                return
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            right = sum((model(prepare(x)).argmax(1) == y).sum() for x, y in val_loader)
        print(f"step {step} loss {loss.item():.3f} accuracy {right.item() / 640:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    main(parser.parse_args())
