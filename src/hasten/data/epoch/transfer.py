"""The next batch crosses to the device while this one trains.

A copy is asynchronous only from pinned memory, and is still under way when the call returns. So three lifetimes are
kept here: the host's batch, whose slot may be reused, lives until its copy's event is over; what the device's
allocator lent to the copying stream is marked as used by the stream that consumes it (`record_stream`); and the
consumer's stream waits for the event, not the host.
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

# Steps that the host may be ahead of the device: each has a batch there, whose memory is not free before the step is done.
MOST_AHEAD = 3


@dataclass
class Crossing:
    """A batch on its way."""

    batch: Any
    event: torch.Event | None
    """Over when the copy is; None where it was over at once."""


def transfer_to(device: torch.device | None, stream: torch.Stream | None = None) -> Transfer | Direct | None:
    """What brings batches to a device, on a stream of its own if not on this one; None for those that stay."""
    if device is None:
        return None
    return Transfer(device, stream) if accelerator.has_streams(device) else Direct(device)


class Direct:
    """Copies batches to a device that has no streams, at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def send(self, batch: Any) -> Crossing:
        """Copy a batch, and make floats of its images there."""
        return Crossing(map_tensors(batch, lambda value: copied(value, self.device)), None)

    def receive(self, crossing: Crossing) -> Any:
        """The batch."""
        return crossing.batch


class Transfer:
    """Copies batches to a device on a stream beside the script's."""

    def __init__(self, device: torch.device, stream: torch.Stream | None = None) -> None:
        self.device = device
        self._stream = accelerator.new_stream(device) if stream is None else stream
        self._leaving: deque[tuple[Any, torch.Event]] = deque()
        self._used: deque[torch.Event] = deque()  # of each batch that was handed out: when the step before it is done

    def send(self, batch: Any) -> Crossing:
        """Begin to copy a batch, and make floats of its images there."""
        while len(self._used) > MOST_AHEAD:
            self._used.popleft().synchronize()
        event = accelerator.new_event()
        with accelerator.on_stream(self._stream):
            sent = map_tensors(batch, lambda value: copied(value, self.device, pinned=True))
            event.record(self._stream)
        self._leaving.append((batch, event))
        return Crossing(sent, event)

    def passed(self) -> Callable[[], bool]:
        """Whether what was asked of the copying stream so far is done."""
        event = accelerator.new_event()
        try:
            event.record(self._stream)
        except RuntimeError:  # in a forked child, or as the interpreter ends: the device is not this process's
            return lambda: True
        return event.query

    def receive(self, crossing: Crossing) -> Any:
        """The batch, for use on the current stream."""
        consumer = accelerator.current_stream(self.device)
        if crossing.event is not None:
            consumer.wait_event(crossing.event)
        map_tensors(crossing.batch, lambda tensor: tensor.record_stream(consumer))
        self._used.append(accelerator.new_event())
        self._used[-1].record(consumer)
        while self._leaving and self._leaving[0][1].query():
            self._leaving.popleft()
        return crossing.batch


def copied(value: Any, device: torch.device, *, pinned: bool = False) -> torch.Tensor:
    """A tensor on the device, asked for on the current stream; of late images, their floats. `pinned`: from such memory."""
    tensor = value.pixels if isinstance(value, LateImages) else value
    if pinned and _may_be_pinned(tensor) and not tensor.is_pinned():
        tensor = tensor.pin_memory()  # from pageable memory it would wait for what the stream was asked for before
    there = tensor.to(device, non_blocking=True)
    return scale_batch(there, value.scaling) if isinstance(value, LateImages) else there


def _may_be_pinned(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided
