"""Datasets for the loader's tests, and a comparison of batches."""

import os
import random

import numpy as np
import torch
from torch.utils.data import Dataset


def same(one, other) -> bool:
    """Whether two batches are identical, including types and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other))
    return bool(one == other)


class Nested(Dataset):
    """Deterministic samples of many types."""

    def __init__(self, length: int = 41) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return (
            torch.full((2, 3), float(index)),
            index,
            {
                "name": f"n{index}",
                "array": np.arange(4, dtype=np.int16) + index,
                "pair": [index * 0.5, index % 2 == 0],
            },
            np.float32(index),
            torch.tensor(index, dtype=torch.bfloat16),
        )


class Drawing(Dataset):
    """Samples that draw from every global generator."""

    def __init__(self, length: int = 41) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index):
        return index, torch.rand(2), np.random.rand(), random.random()


class Failing(Nested):
    """Some samples cannot be built."""

    def __init__(self, bad: tuple[int, ...], length: int = 41) -> None:
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"{index} is torn")
        return super().__getitem__(index)


class Dying(Nested):
    """One sample kills the process that builds it."""

    def __init__(self, fatal: int, signal: int) -> None:
        super().__init__()
        self.fatal = fatal
        self.signal = signal

    def __getitem__(self, index):
        if index == self.fatal:
            os.kill(os.getpid(), self.signal)
        return super().__getitem__(index)


class Large(Dataset):
    """The samples of another dataset, each with 100 KB of numbers."""

    def __init__(self, dataset, is_odd=lambda index: False) -> None:
        self.dataset, self.is_odd = dataset, is_odd

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index):
        dtype = torch.float64 if self.is_odd(index) else torch.float32
        return self.dataset[index], torch.full((160, 160), index / 3, dtype=dtype)
