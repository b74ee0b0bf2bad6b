"""Copy the next batch to the device while this one trains.

A copy is asynchronous only from pinned memory, and is still in progress when the call returns. So three lifetimes are managed
here: the host's batch, whose slot may be reused, lives until its copy's event is done; memory from the device's allocator,
allocated on the copying stream, is marked as used by the consuming stream (`record_stream`); and the consumer's stream waits
for the event, the host does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hasten.data.layout.scaling import scale_batch
from hasten.data.layout.tree import LateImages, map_tensors
from hasten.devices import accelerator

# How many steps the host may run ahead: each has a batch on the device whose memory is not free before the step is done.
MAX_AHEAD = 3


@dataclass
class PendingCopy:
    """A batch being copied."""

    batch: Any
    event: torch.Event | None
    """Done when the copy is; None if it is done already."""


def transfer_to(device: torch.device | None, stream: torch.Stream | None = None) -> Transfer | Direct | None:
    """Return what copies batches to a device, on `stream` or a new stream; None if batches stay on the host."""
    if device is None:
        return None
    return Transfer(device, stream) if accelerator.has_streams(device) else Direct(device)


class Direct:
    """Copies batches synchronously to a device that has no streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def send(self, batch: Any) -> PendingCopy:
        """Copy a batch, and convert its images to floats on the device."""
        return PendingCopy(map_tensors(batch, lambda value: copied(value, self.device)), None)

    def receive(self, pending_copy: PendingCopy) -> Any:
        """Return the batch."""
        return pending_copy.batch


class Transfer:
    """Copies batches to a device on a separate stream."""

    def __init__(self, device: torch.device, stream: torch.Stream | None = None) -> None:
        self.device = device
        self._stream = accelerator.new_stream(device) if stream is None else stream
        self._copying: deque[tuple[Any, torch.Event]] = deque()
        self._used: deque[torch.Event] = deque()  # for each returned batch: when the step before it is done

    def send(self, batch: Any) -> PendingCopy:
        """Start copying a batch, and converting its images to floats on the device."""
        while len(self._used) > MAX_AHEAD:
            self._used.popleft().synchronize()
        event = accelerator.new_event()
        with accelerator.on_stream(self._stream):
            sent = map_tensors(batch, lambda value: copied(value, self.device, pinned=True))
            event.record(self._stream)
        self._copying.append((batch, event))
        return PendingCopy(sent, event)

    def fence(self) -> Callable[[], bool]:
        """Return a function that says whether everything issued on the copying stream so far is done."""
        event = accelerator.new_event()
        try:
            event.record(self._stream)
        except RuntimeError:  # in a forked child, or at interpreter exit: this process cannot use the device
            return lambda: True
        return event.query

    def receive(self, pending_copy: PendingCopy) -> Any:
        """Return the batch, for use on the current stream."""
        consumer = accelerator.current_stream(self.device)
        if pending_copy.event is not None:
            consumer.wait_event(pending_copy.event)
        map_tensors(pending_copy.batch, lambda tensor: tensor.record_stream(consumer))
        self._used.append(accelerator.new_event())
        self._used[-1].record(consumer)
        while self._copying and self._copying[0][1].query():
            self._copying.popleft()
        return pending_copy.batch


def copied(value: Any, device: torch.device, *, pinned: bool = False) -> torch.Tensor:
    """Copy a tensor, or late images as floats, to the device on the current stream, from pinned memory if `pinned`."""
    tensor = value.pixels if isinstance(value, LateImages) else value
    if pinned and _may_be_pinned(tensor) and not tensor.is_pinned():
        tensor = tensor.pin_memory()  # a copy from pageable memory would wait for all earlier work on the stream
    there = tensor.to(device, non_blocking=True)
    return scale_batch(there, value.scaling) if isinstance(value, LateImages) else there


def _may_be_pinned(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided
