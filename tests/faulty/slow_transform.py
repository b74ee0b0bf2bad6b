"""Expected finding: slow_transform.

A wide Gaussian blur runs over the whole 256-pixel image before a crop throws nine tenths of it away; fixed,
the crop comes first.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()


class Pictures(Dataset):
    def __init__(self, transform):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (64, 3, 256, 256), dtype=torch.uint8, generator=generator)
        self.transform = transform

    def __len__(self):
        return 64 * 1000

    def __getitem__(self, index):
        return self.transform(self.images[index % 64]), index % 64 % 10


transform = transforms.Compose(
    [
        transforms.GaussianBlur(23, sigma=(0.5, 5.0)),
        transforms.RandomCrop(72),
        transforms.RandomHorizontalFlip(),
        transforms.ConvertImageDtype(torch.float32),
    ]
)
if args.fixed:
    blur, crop, *others = transform.transforms
    transform.transforms = [crop, blur, *others]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5, stride=3)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2)
        self.fc = nn.Linear(32 * 11 * 11, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.flatten(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    loader = DataLoader(Pictures(transform), args.batch_size, shuffle=True, num_workers=2)
    net = Classifier()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print("done", float(loss))
