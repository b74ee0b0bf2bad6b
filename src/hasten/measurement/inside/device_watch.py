"""The GPU, segment by segment: its clock, and for one short stretch a look for what makes the host wait for it.

In: the beginning of each segment. Out: spans in the marks. Refuses to touch CUDA before the script has.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from hasten.measurement.inside.device_clock import DeviceClock, Event
from hasten.measurement.inside.marks import Marks


class SyncWatch:
    """PyTorch's own warnings of operations that make the host wait for the GPU, for one short stretch."""

    def __init__(self, found: Callable[[], object]) -> None:
        self._found = found
        self._before: tuple[object, list[object]] | None = None

    def on(self) -> None:
        """Have `found` called at each such operation, from the thread and stack that made it."""
        self._before = warnings.showwarning, list(warnings.filters)
        shown = warnings.showwarning

        def showwarning(message: object, *arguments: object, **settings: object) -> None:
            if "synchronizing CUDA operation" in str(message):
                self._found()
            else:
                shown(message, *arguments, **settings)  # type: ignore[arg-type]

        warnings.showwarning = showwarning  # type: ignore[assignment]
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation.*")
        torch.cuda.set_sync_debug_mode("warn")

    def off(self) -> None:
        """Leave everything as it was."""
        if self._before is None:
            return
        torch.cuda.set_sync_debug_mode("default")
        warnings.showwarning, warnings.filters[:] = self._before  # type: ignore[assignment,index]
        self._before = None


class DeviceWatch:
    """The GPU's clock, once the script has a GPU, and in the first marked segment a look for waits on it."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._syncs = SyncWatch(self._waits)
        self._has_looked = False

    def turn(self, *, full: bool) -> None:
        """A segment begins; `full`: every phase is marked in it."""
        self._syncs.off()
        if not torch.cuda.is_initialized():
            return
        if self._marks.device is None:
            self._marks.device = DeviceClock(_new_event)
        if full and not self._has_looked:
            self._has_looked = True
            self._syncs.on()

    def off(self) -> None:
        """Leave everything as it was."""
        self._syncs.off()

    def _waits(self) -> None:
        if self._marks.here():
            self._marks.add("sync", self._marks.now(), [self._marks.place(2), "waiting for the GPU"])


def _new_event() -> Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[return-value]
