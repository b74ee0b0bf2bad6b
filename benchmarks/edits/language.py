"""Train a small language model on characters. Usage: python language.py [STEPS]; data/text.txt is the text."""

import csv
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 6, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def get_batch(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,))
    x = torch.stack([data[s : s + CONTEXT] for s in starts])
    y = torch.stack([data[s + 1 : s + CONTEXT + 1] for s in starts])
    return x, y


@torch.no_grad()
def evaluate(model: nn.Module, data: torch.Tensor) -> float:
    model.eval()
    total = 0.0
    windows = data[: 16 * BATCH * CONTEXT + 1]
    for x, y in zip(windows[:-1].view(16, BATCH, CONTEXT), windows[1:].view(16, BATCH, CONTEXT)):
        logits = model(x)
        total += functional.cross_entropy(logits.flatten(0, 1), y.flatten()).item()
    model.train()
    return total / 16


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = Path("data/text.txt").read_text(encoding="utf-8")
    characters = sorted(set(text))
    number = {character: n for n, character in enumerate(characters)}
    data = torch.tensor([number[character] for character in text])
    train_data, val_data = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]
    model = Model(len(characters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open("log.csv", "w", newline="", encoding="utf-8") as file:
        log = csv.writer(file)
        for step in range(STEPS):
            x, y = get_batch(train_data)
            logits = model(x)
            loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            gradients = [p.grad.norm().item() for p in model.parameters()]
            weights = [p.detach().norm().item() for p in model.parameters()]
            log.writerow([step, loss.item(), *gradients, *weights])
            if step % 100 == 99:
                print(
                    f"step {step + 1}: loss {loss.item():.4f}, validation {evaluate(model, val_data):.4f}", flush=True
                )


if __name__ == "__main__":
    main()
