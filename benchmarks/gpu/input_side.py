"""From the host to the device: copies, what runs beside them, data that lies on the device, augmenting there."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hasten import Loader
from hasten.data.layout.arena import Arena
from hasten.devices import cuda

ROUNDS = 5


def seconds_of(work: Callable[[], object], *, times: int) -> list[float]:
    """Seconds of `work`, with the device done before and after."""
    found = []
    for _ in range(times + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found[1:]


def copies(dry: bool) -> dict[str, Any]:
    """Bytes a second from pageable memory, torch's pinned memory, and shared memory locked in place as a slot is."""
    size = (1 << 16) if dry else (256 << 20)
    plain = torch.zeros(size, dtype=torch.uint8)
    pinned = plain.pin_memory()
    arena = Arena(2 * size)
    place = arena.reserve(size)
    slot = torch.frombuffer(arena.view(place), dtype=torch.uint8)[:size]
    undo = cuda.pin(slot.data_ptr(), size)
    times = 2 if dry else 10
    found: dict[str, Any] = {}
    for name, source in (("pageable", plain), ("pinned", pinned), ("slot", slot)):
        taken = seconds_of(lambda source=source: source.to("cuda", non_blocking=True), times=times)
        found[name] = {"bytes_per_second": size / statistics.median(taken), "seconds": taken}
    if undo is not None:
        undo()
    rates = ", ".join(f"{name} {one['bytes_per_second'] / 1e9:.1f} GB/s" for name, one in found.items())
    return {"brief": rates, "slot_was_locked": undo is not None, "bytes": size, **found}


class Frames(Dataset):
    """Large samples that cost nothing to make."""

    def __init__(self, length: int, side: int) -> None:
        self.length = length
        self.frame = torch.zeros(3, side, side)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.frame.clone(), index % 10


def overlap(dry: bool) -> dict[str, Any]:
    """Steps whose copy takes about as long as their computing: torch's loader on one stream, hasten's on two."""
    side, batch, length, workers = (16, 8, 64, 1) if dry else (224, 256, 256 * 24, 12)
    width = 64 if dry else 8192
    matrix = torch.randn(width, width, device="cuda", dtype=torch.bfloat16)
    products = 1 if dry else 2  # 3 ms on an H100, as a copy of the batch

    def epoch(batches: Iterable[Any], *, copies: bool) -> int:
        number = 0
        for images, labels in batches:
            if copies:
                images, labels = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
            kept = images.mean() + labels.sum()
            for _ in range(products):
                kept = kept + (matrix @ matrix)[0, 0].float()
            number += 1
        return number

    data, settings = Frames(length, side), {"num_workers": workers, "persistent_workers": workers > 0}
    ready = (torch.zeros(batch, 3, side, side, device="cuda"), torch.zeros(batch, dtype=torch.int64, device="cuda"))
    sides: dict[str, Callable[[], object]] = {
        "computing alone": lambda: epoch([ready] * (length // batch), copies=False),
        "torch, pageable": functools.partial(epoch, DataLoader(data, batch, **settings), copies=True),
        "torch, pinned": functools.partial(epoch, DataLoader(data, batch, pin_memory=True, **settings), copies=True),
        "hasten, on the device": functools.partial(
            epoch, Loader(data, batch, device="cuda", **settings), copies=False
        ),
    }
    return in_turns(sides, per=length // batch, rounds=1 if dry else ROUNDS)


def in_turns(sides: dict[str, Callable[[], object]], *, per: int, rounds: int) -> dict[str, Any]:
    """Seconds a batch of each side, the sides taking turns; the first round only warms up."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in sides if number % 2 else reversed(sides):
            torch.cuda.synchronize()
            start = time.perf_counter()
            sides[name]()
            torch.cuda.synchronize()
            if number:
                found[name].append((time.perf_counter() - start) / per)
    brief = ", ".join(f"{name} {1e3 * statistics.median(taken):.2f} ms" for name, taken in found.items())
    return {"brief": brief, "seconds_a_batch": found}


def device_tier(dry: bool) -> dict[str, Any]:
    """Data that fits on the device: gathered there, against torch's loader and a copy of each batch."""
    length, width, batch = (256, 32, 32) if dry else (400_000, 784, 512)
    data = TensorDataset(torch.randint(0, 256, (length, width), dtype=torch.uint8), torch.arange(length))

    def epoch(batches: Iterable[Any]) -> None:
        for rows, numbers in batches:
            rows.to("cuda", non_blocking=True).float().mean()
            numbers.to("cuda", non_blocking=True)

    sides: dict[str, Callable[[], object]] = {
        "torch": lambda: epoch(DataLoader(data, batch, shuffle=True, pin_memory=True)),
        "hasten": functools.partial(epoch, Loader(data, batch, shuffle=True, device="cuda")),
    }
    return in_turns(sides, per=length // batch, rounds=1 if dry else ROUNDS)


def photographs(dry: bool) -> dict[str, Any]:
    """Photographs to normalized floats on the device, from the second epoch on: torch's loader and hasten's with a cache."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from hasten.workloads.images import PHOTOS, make_images

    number, batch, workers = (16, 8, 1) if dry else (2000, 64, 14)
    folder = make_images(PHOTOS, num_images=number)
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    data = ImageFolder(str(folder), transforms.Compose([*steps, transforms.Normalize([0.5] * 3, [0.25] * 3)]))
    settings = {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}

    def epoch(batches: Iterable[Any]) -> None:
        for images, _ in batches:
            images.to("cuda", non_blocking=True).mean()

    sides: dict[str, Callable[[], object]] = {
        "torch": functools.partial(epoch, DataLoader(data, batch, pin_memory=True, **settings)),
        "hasten": functools.partial(epoch, Loader(data, batch, device="cuda", **settings)),
        "hasten, cache": functools.partial(epoch, Loader(data, batch, device="cuda", cache="auto", **settings)),
    }
    return in_turns(sides, per=max(1, len(data) // batch), rounds=1 if dry else 3)


def augment(dry: bool) -> dict[str, Any]:
    """The augmentation of tests/faulty/gpu/starved_by_augmentation.py: on one core, and on the GPU one by one and at once."""
    folder = Path(__file__).resolve().parent.parent.parent / "tests" / "faulty" / "gpu"
    sys.path.insert(0, str(folder))
    from starved_by_augmentation import augment as augmented

    torch.set_num_threads(1)
    count, side, radius = (4, 16, 2) if dry else (64, 224, 11)
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
    there = images.to("cuda")
    times = 1 if dry else 5
    found = {
        "one core, image by image": seconds_of(lambda: [augmented(one[None], radius) for one in images], times=times),
        "GPU, image by image": seconds_of(lambda: [augmented(one[None], radius) for one in there], times=times),
        "GPU, the batch at once": seconds_of(lambda: augmented(there, radius), times=times),
    }
    shown = {name: round(1e3 * statistics.median(taken) / count, 3) for name, taken in found.items()}
    return {"brief": f"ms an image: {shown}", "images": count, "seconds_a_batch": found}
