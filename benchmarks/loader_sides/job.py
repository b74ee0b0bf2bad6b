"""What one run of one side is asked to do. Travels as JSON from the benchmark to the side's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Epoch = Callable[[], Iterable[tuple[Any, Any]]]
"""Called once an epoch: its batches, as (inputs, labels)."""

Transform = Literal["random_crop", "center", "squash"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: a side, its own options, and the data all sides share."""

    module: str
    """The side's file in this folder."""
    options: dict[str, Any] = field(default_factory=dict)
    batch_size: int
    data: str
    """A name in datasets.py: what a sample is."""
    transform: Transform = "random_crop"
    workers: int
    """Processes or threads, whichever the side has; a side without either takes it as it can."""
    shuffle: bool = True
    seconds: float
    """The window is whole epochs of at least so long, after the first."""
    num_samples: int | None = None
    """Fewer than there are, for a quick look."""
    compare_pixels: bool = False
    """Instead of timing, compare the second epoch's images with Pillow's."""
    photos: str
    """A folder of class folders of JPEG files."""
    xray: str
    """A folder of class folders of PNG files."""
    scratch: str
    """Where converted data sets are kept."""
