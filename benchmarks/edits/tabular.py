"""Predict which of four classes a customer belongs to, from a table. Usage: python tabular.py [EPOCHS]; data/table.pt."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
torch.autograd.set_detect_anomaly(True)


class Table(Dataset):
    """Rows of a table: numbers, categories, and the class."""

    def __init__(self, rows: dict[str, torch.Tensor]) -> None:
        self.numbers, self.categories, self.targets = rows["numbers"], rows["categories"], rows["targets"]
        self.mean, self.std = self.numbers.mean(0), self.numbers.std(0)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        numbers = (self.numbers[index] - self.mean) / self.std
        return numbers, self.categories[index], self.targets[index]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.ModuleList(nn.Embedding(20, 8) for _ in range(4))
        layers: list[nn.Module] = []
        for inputs, outputs in ((32 + 4 * 8, 256), (256, 256), (256, 256)):
            layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(0.2)]
        self.layers = nn.Sequential(*layers, nn.Linear(256, 4))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        embedded = [embedding(categories[:, n]) for n, embedding in enumerate(self.embedding)]
        return self.layers(torch.cat([numbers, *embedded], 1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = torch.load("data/table.pt")
    train_set, val_set = Table(table["train"]), Table(table["val"])
    train_loader = DataLoader(train_set, batch_size=128, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=256)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(EPOCHS):
        model.train()
        confusion = torch.zeros(4, 4, dtype=torch.int64)
        for numbers, categories, targets in train_loader:
            outputs = model(numbers, categories)
            loss = functional.cross_entropy(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for target, predicted in zip(targets, outputs.argmax(1)):
                confusion[target, predicted] += 1
        model.eval()
        with torch.no_grad():
            losses = [functional.cross_entropy(model(n, c), targets).item() for n, c, targets in val_loader]
        accuracy = confusion.diagonal().sum().item() / confusion.sum().item()
        print(
            f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.3f}, "
            f"validation {sum(losses) / len(losses):.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
