"""Classify photographs with a convolutional network. Usage: python photos.py [EPOCHS]; data/photos holds the files."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 50
SIZE = 64


class Photos(Dataset):
    """Photographs of a folder; a file's name begins with its class."""

    def __init__(self, folder: str, *, augment: bool) -> None:
        self.paths = sorted(Path(folder).glob("*.jpg"))
        self.labels = [int(path.name.partition("_")[0]) for path in self.paths]
        self.augment = augment

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(self.paths[index]).convert("RGB").resize((SIZE, SIZE), Image.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if self.augment and torch.rand(()) < 0.5:
            pixels = pixels.flip(-1)
        return pixels, self.labels[index]


def block(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class Net(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(block(3, 16), block(16, 32), block(32, 64))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images.float() / 127.5 - 1).mean((2, 3)))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_set = Photos("data/photos/train", augment=True)
    val_set = Photos("data/photos/val", augment=False)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=64)
    model = Net(classes=max(train_set.labels) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        model.train()
        train_loss = 0.0
        for images, labels in train_loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train_loss += loss.item()
        model.eval()
        val_loss, correct = 0.0, 0
        with torch.no_grad():
            for images, labels in val_loader:
                outputs = model(images)
                val_loss += criterion(outputs, labels).item() * len(labels)
                correct += (outputs.argmax(1) == labels).sum().item()
        print(
            f"epoch {epoch}: loss {train_loss / len(train_loader):.4f}, "
            f"validation {val_loss / len(val_set):.4f}, accuracy {correct / len(val_set):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
