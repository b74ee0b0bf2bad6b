"""Name the shape in an image with a small residual network. Usage: python shapes.py [EPOCHS]; data/shapes.pt."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 50


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Net(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.layer1 = Residual(16, 16, 1)
        self.layer2 = Residual(16, 32, 2)
        self.layer3 = Residual(32, 64, 2)
        self.head = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(images))))
        return self.head(x.mean((2, 3)))


def normalized(images: torch.Tensor) -> torch.Tensor:
    return images.float() / 127.5 - 1


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.load("data/shapes.pt")
    train_set = TensorDataset(data["train_images"], data["train_labels"])
    val_set = TensorDataset(data["val_images"], data["val_labels"])
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=64)
    model = Net(classes=int(data["train_labels"].max()) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in train_loader:
            outputs = model(normalized(images))
            loss = functional.cross_entropy(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        val_loss, correct = 0.0, 0
        with torch.no_grad():
            for images, labels in val_loader:
                outputs = model(normalized(images))
                val_loss += functional.cross_entropy(outputs, labels).item()
                correct += (outputs.argmax(1) == labels).sum().item()
        print(
            f"epoch {epoch}: loss {loss.item():.4f}, validation {val_loss / len(val_loader):.4f}, "
            f"accuracy {correct / len(val_set):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
