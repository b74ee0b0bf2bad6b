"""Remove the noise of images with an autoencoder. Usage: python autoencoder.py [EPOCHS]; data/shapes.pt holds the images."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 100


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
        )
        self.decoder = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.decoder(self.encoder(images)))


def structure(image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """One minus the structural similarity of two images, in windows of 7 x 7."""
    mean_x, mean_y = (functional.avg_pool2d(i, 7, stride=1) for i in (image, target))
    var_x = functional.avg_pool2d(image * image, 7, stride=1) - mean_x * mean_x
    var_y = functional.avg_pool2d(target * target, 7, stride=1) - mean_y * mean_y
    both = functional.avg_pool2d(image * target, 7, stride=1) - mean_x * mean_y
    above = (2 * mean_x * mean_y + 1e-4) * (2 * both + 9e-4)
    below = (mean_x * mean_x + mean_y * mean_y + 1e-4) * (var_x + var_y + 9e-4)
    return 1 - (above / below).mean()


def loss_of(outputs: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    loss = functional.mse_loss(outputs, images)
    for output, image in zip(outputs, images):
        loss = loss + 0.1 * structure(output, image) / len(images)
    return loss


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.load("data/shapes.pt")
    train_set = TensorDataset(data["train_images"][:768])
    val_set = TensorDataset(data["val_images"])
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=64)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        model.train()
        for (batch,) in train_loader:
            images = batch.float() / 255
            outputs = model(images + 0.1 * torch.randn_like(images))
            loss = loss_of(outputs, images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        val_loss = 0.0
        with torch.no_grad():
            for (batch,) in val_loader:
                images = batch.float() / 255
                val_loss += loss_of(model(images), images).item()
        print(f"epoch {epoch}: loss {loss.item():.5f}, validation {val_loss / len(val_loader):.5f}", flush=True)


if __name__ == "__main__":
    main()
