"""Decoded images on the device, from which later epochs cut theirs there.

In: the images of batches that were handed out. Out: batches that were made on the device. Refuses to draw, to look at
files, and to know transforms.

An image is kept as it is before the random part of its transforms, in bytes. What a batch needs beside it is asked of
the workers, as ever: whoever would make a sample looks at its file, its transforms and its label, draws what it would
draw, and answers with the place and the flips instead of pixels (`FolderSamples.cut_sample`); or that the sample is no
longer made from the image that is held. One such answer, and the whole batch is asked for in the usual way. So nothing that
the device holds is ever taken on trust, and what a sample draws does not depend on where its image lies.

Images get here from the host's memory, where the workers have put them: after each batch the training process moves some,
for no longer than `FILL_SHARE` of the time since the batch before. What is in stays in, until a worker disowns it; a full
tier takes nothing more. The budget is a share of what is free after the first step, when the model has what it needs.
All of it happens on one stream, on which the batches cross as well, so nothing needs to wait for anything else.
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

DEVICE_SHARE = 0.25  # of the device's free memory: what a later step may need is not known
FILL_SHARE = 0.05  # of the training process's time, to move images
MOST_SECONDS = 5e-3  # for that, after a batch
MOST_WANTED = 1 << 16  # images that wait to be moved
ROUNDED_TO = 512  # bytes, by torch's allocators


class DeviceTier:
    """The images of one dataset on one device."""

    def __init__(self, device: torch.device) -> None:
        self.stream = accelerator.new_stream(device)
        self._device = device
        self._held: dict[int, tuple[Prepared, torch.Tensor]] = {}  # by the sample's index
        self._disowned: dict[int, bytes] = {}  # keys that workers would have nothing of
        self._wanted: deque[int] = deque(maxlen=MOST_WANTED)
        self._filled_at: float | None = None
        self._budget: int | None = None
        self._is_full = False
        self._num_bytes = self._num_hits = self._num_fills = 0

    # Batches

    def ask(self, pending: PendingBatch, layout: Layout) -> Task | None:
        """The task for a batch all of whose images are here; None for any other."""
        if _images_in(layout) is None:
            return None
        found = [self._held.get(index) if type(index) is int else None for index in pending.indices]
        held = [one for one in found if one is not None]
        if len(held) < len(found):
            return None
        return pending.cuts([image for _, image in held], [prepared for prepared, _ in held])

    def take(self, result: Result, pending: PendingBatch, layout: Layout) -> bool:
        """Note the answer; False where the batch is to be asked for in the usual way, because of a sample or of its shape."""
        answers = dict(result.strays)
        for row, index in enumerate(pending.indices):
            if answers.get(row) is None and result.error is None:
                self._disown(index)
        leaf = _images_in(layout)
        fits = leaf is not None and len(answers) == len(pending.indices)
        if not fits or not all(_is_like(answer, leaf) for answer in answers.values()):
            pending.held = None
            return False
        pending.strays = answers
        return True

    def batch(self, pending: PendingBatch) -> Any:
        """The batch, on its way: its labels are still on the host, and its images are bytes on the device."""
        assert pending.held is not None
        samples: list[CutSample] = [pending.strays[row] for row in range(len(pending.indices))]
        with accelerator.on_stream(self.stream):
            images = [sample.cut.of(image).expand(CHANNELS, -1, -1) for sample, image in zip(samples, pending.held)]
            pixels = torch.stack(images)
        self._num_hits += len(samples)
        labels: Any = tuple(sample.label for sample in samples)
        return [
            LateImages(pixels, samples[0].scaling),
            default_collate(labels),
        ]  # a list of a tuple, as torch does it

    def _disown(self, index: int) -> None:
        gone = self._held.pop(index, None)
        if gone is not None:
            self._disowned[index] = gone[0].key
            self._num_bytes -= _bytes_of(gone[1])
            self._is_full = False

    # Images

    def want(self, indices: Iterable[Any]) -> None:
        """Have the images of these samples moved here some time."""
        if not self._is_full:
            self._wanted.extend(index for index in indices if type(index) is int and index not in self._held)

    def fill(self, folders: FolderSamples, memo: Memo) -> None:
        """Move some of the images that are wanted, those that lie in the host's memory. Called once a batch."""
        now, before = time.perf_counter(), self._filled_at
        if before is not None and self._wanted:
            if self._budget is None:
                self._budget = int(DEVICE_SHARE * accelerator.free_memory(self._device))
            until = now + min(FILL_SHARE * (now - before), MOST_SECONDS)
            while self._wanted:
                self._move(self._wanted.popleft(), folders, memo)
                if time.perf_counter() >= until:
                    break
        self._filled_at = time.perf_counter()

    def _move(self, index: int, folders: FolderSamples, memo: Memo) -> None:
        folders.look_again()
        key = None if index in self._held else folders.key_to_cut(index)
        if key is None or key == self._disowned.get(index):
            return
        image = None
        with contextlib.suppress(ValueError):  # not a stored value
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
        self._wanted.clear()

    # What it did

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing."""
        return not self._held

    def beside(self, counts: MemoCounts) -> MemoCounts:
        """The counts of the tiers on the host, and before them this one's."""
        mean = counts.seconds_computing / max(1, counts.num_misses)
        taken = self._num_bytes, self._budget or 0
        own = TierCounts("device", self._num_hits, self._num_fills, *taken, self._num_hits * mean)
        return replace(counts, tiers=(own, *counts.tiers))


_tiers: weakref.WeakKeyDictionary[Memo, dict[torch.device, DeviceTier]] = weakref.WeakKeyDictionary()


def tier_beside(memo: Memo, device: torch.device) -> DeviceTier | None:
    """The tier that lives as long as a memo; None for a device whose memory is the host's."""
    if not accelerator.has_streams(device):
        return None
    numbered = accelerator.current_stream(device).device
    beside = _tiers.setdefault(memo, {})
    if numbered not in beside:
        beside[numbered] = DeviceTier(numbered)
    return beside[numbered]


def _images_in(layout: Layout) -> Leaf | None:
    """The images of pairs of an image and a label that become floats on the device; None where samples are otherwise."""
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
