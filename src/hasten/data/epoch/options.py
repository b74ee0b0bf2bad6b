"""What a Loader is asked for beyond DataLoader's own arguments; see `Loader` for what each option means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from hasten.data.images.pixels import PixelRule


@dataclass(frozen=True)
class LoaderOptions:
    """The options, checked."""

    device: torch.device | None
    """None: batches stay in the host's memory."""
    cache: int | str | None
    disk_cache: int | str | None
    pixels: PixelRule
    workers: Literal["auto", "processes", "threads"]
    on_error: Literal["raise", "replace"]
    max_error_rate: float
    adjusts_workers: bool
    """The number of workers and the depth are corrected while the epoch runs."""

    @property
    def caches(self) -> bool:
        """Whether something is to be cached."""
        return self.cache is not None or self.disk_cache is not None
