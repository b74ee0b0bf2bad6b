"""What the scripts learn from: drawn, not downloaded, and hard enough that a worse training shows."""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image

SIZES = {"train": 768, "val": 256}


def photos(folder: Path) -> None:
    """Stripes of four widths in two directions, in any color, under noise: the class is width and direction."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:192, 0:256]
    for part, number in SIZES.items():
        place = folder / "photos" / part
        place.mkdir(parents=True)
        for n in range(number):
            label = n % 8
            along = x if label % 2 else y
            wave = np.sin(2 * np.pi * along / (16 + 8 * (label // 2)) + rng.uniform(0, 6.3))
            pixels = (
                rng.uniform(60, 190, 3) + wave[..., None] * rng.uniform(-30, 30, 3) + rng.normal(0, 40, (192, 256, 1))
            )
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(place / f"{label}_{n:04d}.jpg", quality=90)


def text(folder: Path) -> None:
    """Sentences of a small grammar, whose verb agrees with the subject."""
    draw = random.Random(0)
    subjects = {
        "s": ["the cat", "a child", "my neighbor", "the old clock"],
        "p": ["two dogs", "the birds", "we", "all rivers"],
    }
    verbs = {"s": ["sees", "likes", "carries", "forgets"], "p": ["see", "like", "carry", "forget"]}
    places = ["in the garden", "under a bridge", "near the sea", "at noon", "without a word"]
    sentences = []
    for _ in range(6000):
        number = draw.choice("sp")
        words = [draw.choice(subjects[number]), draw.choice(verbs[number]), draw.choice(subjects[draw.choice("sp")])]
        words += draw.sample(places, draw.randint(0, 2))
        words += [str(draw.randint(2, 9) * draw.randint(2, 9)), "times"] if draw.random() < 0.3 else []
        sentences.append(" ".join(words) + ".")
    (folder / "text.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")


def table(folder: Path) -> None:
    """Numbers and categories, and a class that a network of random weights and a little noise give them."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, generator=draw) for size in ((32 + 80, 24), (24, 4))]
    tables = {}
    for part, number in (("train", 8192), ("val", 2048)):
        numbers = torch.randn(number, 32, generator=draw)
        categories = torch.randint(20, (number, 4), generator=draw)
        known = torch.cat([numbers, torch.nn.functional.one_hot(categories, 20).flatten(1).float()], 1)
        scores = torch.tanh(known @ weights[0] / 4) @ weights[1] + 0.5 * torch.randn(number, 4, generator=draw)
        scale = torch.logspace(-1, 2, 32)
        tables[part] = {"numbers": numbers * scale, "categories": categories, "targets": scores.argmax(1)}
    torch.save(tables, folder / "table.pt")


def shapes(folder: Path) -> None:
    """A disk, a square, a cross, a ring or a bar, anywhere and of any size, in images of 40 x 40 pixels under noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:40, 0:40].astype(np.float32)
    data = {}
    for part, number in SIZES.items():
        labels = np.arange(number) % 5
        images = np.empty((number, 40, 40, 3), np.float32)
        for n, label in enumerate(labels):
            size = rng.uniform(5, 11)
            dx, dy = np.abs(x - rng.uniform(12, 28)), np.abs(y - rng.uniform(12, 28))
            far = np.hypot(dx, dy)
            inside = [
                far < size,
                np.maximum(dx, dy) < 0.9 * size,
                (np.minimum(dx, dy) < size / 3) & (np.maximum(dx, dy) < size),
                (far < size) & (far > size / 2),
                (dx < size) & (dy < size / 3),
            ][label]
            images[n] = rng.uniform(90, 160, 3) + inside[..., None] * rng.choice([-1, 1]) * rng.uniform(30, 80, 3)
            images[n] += rng.normal(0, 15, images[n].shape)
        data[f"{part}_images"] = (
            torch.from_numpy(images.clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2).contiguous()
        )
        data[f"{part}_labels"] = torch.from_numpy(labels)
    torch.save(data, folder / "shapes.pt")


def make(folder: Path) -> None:
    """All of it, in this folder."""
    folder.mkdir(parents=True)
    for maker in (photos, text, table, shapes):
        maker(folder)
