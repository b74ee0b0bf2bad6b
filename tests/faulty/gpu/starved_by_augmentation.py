"""Expected finding: slow_transform.

Each image is turned, recolored, and blurred by a loader worker, and twelve workers cannot feed the GPU; fixed, the
workers send the images as they are, and the GPU augments the whole batch at once, still with parameters drawn for
each image. On an H100 with 16 cores an image takes a worker about 5 ms, so a batch of 64 comes every 27 ms, and the
step computes for 4 ms of them; augmenting the batch on the GPU adds about 1 ms.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def augment(images, radius):
    """Random affine map, brightness, contrast, saturation, and Gaussian blur, each image with its own."""
    count, _, height, width = images.shape
    x = images.float() / 255
    angle, zoom, right, down = torch.rand(4, count, device=x.device) - 0.5
    cos, sin = (1 + 0.4 * zoom) * torch.cos(angle), (1 + 0.4 * zoom) * torch.sin(angle)
    theta = torch.stack([cos, -sin, 0.2 * right, sin, cos, 0.2 * down], dim=1).view(count, 2, 3)
    grid = F.affine_grid(theta, x.shape, align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
    brightness, contrast, saturation = 0.6 + 0.8 * torch.rand(3, count, 1, 1, 1, device=x.device)
    x = x * brightness
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean + contrast * (x - mean)
    gray = x.mean(1, keepdim=True)
    x = (gray + saturation * (x - gray)).reshape(1, 3 * count, height, width)
    sigma = 0.5 + 2.5 * torch.rand(count, 1, device=x.device)
    bell = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, device=x.device) / sigma) ** 2)
    bell = (bell / bell.sum(1, keepdim=True)).repeat_interleave(3, dim=0)
    x = F.pad(x, [radius] * 4, mode="reflect")
    x = F.conv2d(x, bell[:, None, None, :], groups=3 * count)
    x = F.conv2d(x, bell[:, None, :, None], groups=3 * count)
    return x.view(images.shape).clamp(0, 1)


class Images(Dataset):
    def __init__(self, side, radius, augmented):
        self.images = torch.randint(0, 256, (256, 3, side, side), dtype=torch.uint8)
        self.radius, self.augmented = radius, augmented

    def __len__(self):
        return len(self.images) * 100

    def __getitem__(self, index):
        index %= len(self.images)
        image = self.images[index]
        return augment(image[None], self.radius)[0] if self.augmented else image, index % 10


def convnet(width):
    layers = []
    for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 4 * width)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def main(args):
    batch, side, radius, width, workers = (16, 16, 2, 4, 1) if args.small else (64, 224, 11, 64, 12)
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    dataset = Images(side, radius, augmented=not args.fixed)
    settings = dict(shuffle=True, drop_last=True, pin_memory=True, persistent_workers=True)
    loader = DataLoader(dataset, batch, num_workers=workers, **settings)
    model = convnet(width).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while True:
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            if args.fixed:
                x = augment(x, radius)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            step += 1
            if step >= args.steps:
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    main(parser.parse_args())
