"""A dataset that draws from every generator; in a module of its own, for spawned workers import it by name."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info


class Drawn(Dataset):
    """Each sample: its index, a draw of Python's, NumPy's and torch's, and its worker's seed."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        noise = random.random(), np.random.rand(), float(torch.rand(())), float(get_worker_info().seed % 997)
        return torch.tensor([index, *noise], dtype=torch.float64)
