"""Photographs in tar shards (NNNN.jpg beside NNNN.cls), read in order, shuffled in a buffer, resized and cropped at random."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info
from training import Net, corner, prepared, train

SIDE, CROP = 256, 224
BUFFER = 128  # samples from which the next is drawn


class Shards(IterableDataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.tar"))
        self.held: dict[Path, list[tuple[Image.Image, int]]] = {}

    def hold(self) -> None:
        self.held = {path: [(decoded(data), label) for data, label in members(path)] for path in self.paths}

    def samples(self, paths: list[Path]) -> Iterator[tuple[Any, int]]:
        for path in paths:
            yield from self.held[path] if self.held else members(path)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        paths = self.paths[worker.id :: worker.num_workers] if worker is not None else list(self.paths)
        random.shuffle(paths)
        for sample, label in shuffled(self.samples(paths)):
            image = decoded(sample) if isinstance(sample, bytes) else sample
            left, top = corner(image.size, CROP)
            pixels = np.array(image.crop((left, top, left + CROP, top + CROP)))
            yield torch.from_numpy(pixels).permute(2, 0, 1), label


def members(path: Path) -> Iterator[tuple[bytes, int]]:
    """The encoded photographs of a shard, and their labels."""
    with tarfile.open(path) as shard:
        parts: dict[str, bytes] = {}
        for member in shard:
            file = shard.extractfile(member)
            assert file is not None
            parts[Path(member.name).suffix] = file.read()
            if len(parts) == 2:
                yield parts[".jpg"], int(parts[".cls"])
                parts = {}


def decoded(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def shuffled(samples: Iterable[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    buffer: list[tuple[Any, int]] = []
    for sample in samples:
        if len(buffer) < BUFFER:
            buffer.append(sample)
            continue
        place = random.randrange(BUFFER)
        yield buffer[place]
        buffer[place] = sample
    random.shuffle(buffer)
    yield from buffer


def main() -> None:
    wanted = prepared()
    train(Shards(wanted.data), Net(), wanted, shuffle=False)


if __name__ == "__main__":
    main()
