"""What a Loader is asked for beyond DataLoader's own arguments, and what it remembers from one epoch to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from hasten.loading.epoch.gather import Columns
from hasten.loading.epoch.resume import Position
from hasten.loading.recipe import PixelRule
from hasten.loading.tally import Tally


@dataclass
class Record:
    """What is remembered."""

    tally: Tally = field(default_factory=Tally)
    position: Position | None = None
    """Where the epoch that began last is; None when it is over."""
    resumed: Position | None = None
    """Where the next epoch begins, if not at its beginning."""

    on_device: tuple[tuple[object, ...], Columns] | None = None
    """Data that is in memory, moved to the device, and the state in which it was moved."""

    def take_resumed(self) -> Position | None:
        """That position, once."""
        resumed, self.resumed = self.resumed, None
        return resumed


@dataclass(frozen=True)
class Settings:
    """What is asked for; see `Loader` for what each of them means."""

    device: torch.device | None
    """None: batches stay in the host's memory."""
    cache: int | str | None
    disk_cache: int | str | None
    pixels: PixelRule
    workers: Literal["auto", "processes", "threads"]
    on_error: Literal["raise", "replace"]
    max_error_rate: float
    staffs_itself: bool
    """The number of workers and the depth are corrected while the epoch runs."""
    record: Record

    @property
    def keeps(self) -> bool:
        """Something of the samples is to be kept between epochs."""
        return self.cache is not None or self.disk_cache is not None
