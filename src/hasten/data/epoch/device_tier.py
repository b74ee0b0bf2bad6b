"""Decoded images cached on the device, so that later epochs crop them there.

Each image is cached as bytes, as it is before the random part of its transforms. For the rest, the loader still asks the
workers: they check the sample's file, transforms and label, draw the random numbers, and answer with the crop and the flips
instead of pixels (`FolderSamples.cut_sample`), or report that the sample no longer matches the cached image. A single such
report makes the loader request the whole batch the usual way. So nothing on the device is used without a check, and a
sample's random numbers do not depend on where its image is cached.

Images are copied from the host's cache, which the workers fill: after each batch the training process copies some, for at most
`FILL_SHARE` of the time since the previous batch. A cached image stays until a worker reports a mismatch; a full tier takes no
more. The budget is a fraction of the memory that is free after the first step, when the model has allocated what it needs. All
work runs on one stream, the one that also copies batches, so it needs no further synchronization.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from hasten.data.epoch.pending import PendingBatch
from hasten.data.epoch.transfer import copied
from hasten.data.images.pipeline import CHANNELS
from hasten.data.images.pixels import to_tensor
from hasten.data.layout.rows import Leaf
from hasten.data.layout.tree import LateImages, Layout
from hasten.data.memo.folders import CutSample, FolderSamples, Prepared
from hasten.data.memo.memo import Memo, MemoCounts, TierCounts
from hasten.data.workers.tasks import Result, Task
from hasten.devices import accelerator

DEVICE_SHARE = 0.25  # of the device's free memory; later steps may need more than the first
FILL_SHARE = 0.05  # of the training process's time, for copying images
MAX_FILL_SECONDS = 5e-3  # of copying after a batch
MAX_QUEUED = 1 << 16  # images waiting to be copied
ROUNDED_TO = 512  # bytes: the granularity of torch's allocators


class DeviceTier:
    """The images of one dataset that are cached on one device."""

    def __init__(self, device: torch.device) -> None:
        self.stream = accelerator.new_stream(device)
        self._device = device
        self._held: dict[int, tuple[Prepared, torch.Tensor]] = {}  # by sample index
        self._mismatched: dict[int, bytes] = {}  # keys that workers reported as mismatched
        self._queue: deque[int] = deque(maxlen=MAX_QUEUED)
        self._filled_at: float | None = None
        self._budget: int | None = None
        self._is_full = False
        self._num_bytes = self._num_hits = self._num_fills = 0

    # Batches

    def ask(self, pending: PendingBatch, layout: Layout) -> Task | None:
        """Return the task for a batch whose images are all cached here; otherwise None."""
        if _images_in(layout) is None:
            return None
        found = [self._held.get(index) if type(index) is int else None for index in pending.indices]
        held = [one for one in found if one is not None]
        if len(held) < len(found):
            return None
        return pending.cuts([image for _, image in held], [prepared for prepared, _ in held])

    def take(self, result: Result, pending: PendingBatch, layout: Layout) -> bool:
        """Store the workers' answer; False if a sample or its shape means the batch must be requested the usual way."""
        answers = dict(result.unplaced)
        for row, index in enumerate(pending.indices):
            if answers.get(row) is None and result.error is None:
                self._mark_mismatched(index)
        leaf = _images_in(layout)
        fits = leaf is not None and len(answers) == len(pending.indices)
        if not fits or not all(_is_like(answer, leaf) for answer in answers.values()):
            pending.held = None
            return False
        pending.unplaced = answers
        return True

    def batch(self, pending: PendingBatch) -> Any:
        """Assemble the batch: images as bytes on the device, labels still on the host."""
        assert pending.held is not None
        samples: list[CutSample] = [pending.unplaced[row] for row in range(len(pending.indices))]
        with accelerator.on_stream(self.stream):
            images = [sample.cut.of(image).expand(CHANNELS, -1, -1) for sample, image in zip(samples, pending.held)]
            pixels = torch.stack(images)
        self._num_hits += len(samples)
        labels: Any = tuple(sample.label for sample in samples)
        return [
            LateImages(pixels, samples[0].scaling),
            default_collate(labels),
        ]  # a tuple becomes a list, as in torch

    def _mark_mismatched(self, index: int) -> None:
        gone = self._held.pop(index, None)
        if gone is not None:
            self._mismatched[index] = gone[0].key
            self._num_bytes -= _bytes_of(gone[1])
            self._is_full = False

    # Images

    def enqueue(self, indices: Iterable[Any]) -> None:
        """Queue the images of these samples to be copied here."""
        if not self._is_full:
            self._queue.extend(index for index in indices if type(index) is int and index not in self._held)

    def fill(self, folders: FolderSamples, memo: Memo) -> None:
        """Copy some queued images that are in the host's cache. Called once per batch."""
        now, before = time.perf_counter(), self._filled_at
        if before is not None and self._queue:
            if self._budget is None:
                self._budget = int(DEVICE_SHARE * accelerator.free_memory(self._device))
            until = now + min(FILL_SHARE * (now - before), MAX_FILL_SECONDS)
            while self._queue:
                self._move(self._queue.popleft(), folders, memo)
                if time.perf_counter() >= until:
                    break
        self._filled_at = time.perf_counter()

    def _move(self, index: int, folders: FolderSamples, memo: Memo) -> None:
        folders.forget_transforms()
        key = None if index in self._held else folders.key_to_cut(index)
        if key is None or key == self._mismatched.get(index):
            return
        image = None
        with contextlib.suppress(ValueError):  # an invalid entry
            image = memo.in_memory(key)
        if image is None:
            return
        planes = to_tensor(image).contiguous()
        if self._num_bytes + _bytes_of(planes) > (self._budget or 0):
            self._stop()
            return
        try:
            with accelerator.on_stream(self.stream):
                there = copied(planes, self._device, pinned=True)
        except torch.OutOfMemoryError:
            self._budget = self._num_bytes
            self._stop()
            return
        self._held[index] = Prepared(key, *planes.shape[1:]), there
        self._num_bytes += _bytes_of(there)
        self._num_fills += 1

    def _stop(self) -> None:
        self._is_full = True
        self._queue.clear()

    # Statistics

    @property
    def is_empty(self) -> bool:
        """Whether no image is cached."""
        return not self._held

    def add_counts_to(self, counts: MemoCounts) -> MemoCounts:
        """Return `counts` with this tier placed before the host's tiers."""
        mean = counts.seconds_computing / max(1, counts.num_misses)
        taken = self._num_bytes, self._budget or 0
        own = TierCounts("device", self._num_hits, self._num_fills, *taken, self._num_hits * mean)
        return replace(counts, tiers=(own, *counts.tiers))


_tiers: weakref.WeakKeyDictionary[Memo, dict[torch.device, DeviceTier]] = weakref.WeakKeyDictionary()


def tier_for(memo: Memo, device: torch.device) -> DeviceTier | None:
    """Return the device tier that belongs to a memo; None for a device that shares the host's memory."""
    if not accelerator.has_streams(device):
        return None
    numbered = accelerator.current_stream(device).device
    tiers = _tiers.setdefault(memo, {})
    if numbered not in tiers:
        tiers[numbered] = DeviceTier(numbered)
    return tiers[numbered]


def _images_in(layout: Layout) -> Leaf | None:
    """Return the images' leaf if samples are (image, label) pairs whose floats are computed on the device; else None."""
    root = layout.root
    if root.type is not tuple or len(root.parts) != 2 or root.parts[0].kind != "image":
        return None
    leaf = layout.rows[root.parts[0].number]
    return None if leaf.scaling is None else leaf


def _is_like(sample: CutSample | None, leaf: Leaf | None) -> bool:
    if sample is None or leaf is None:
        return False
    return (CHANNELS, sample.cut.height, sample.cut.width) == leaf.shape and sample.scaling == leaf.scaling


def _bytes_of(image: torch.Tensor) -> int:
    return -(-image.nbytes // ROUNDED_TO) * ROUNDED_TO
