"""The accelerator in each segment: its clock, and in one short segment what makes the host wait for it.

Waits that no call in the script shows (a blocking copy, `nonzero`, a mask as an index) are reported by torch on CUDA only;
`.item()` and similar calls are marked on every device. Nothing touches the device before the script has.
"""

from __future__ import annotations

import functools

from hasten.agent.device_clock import DeviceClock
from hasten.agent.marks import Marks
from hasten.devices import accelerator, cuda
from hasten.raw_run import Sync

LOOK_STEPS = 4


class DeviceWatch:
    """The device's clock, once the script has a device, and in the first marked segment a look for waits on it."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._waits = cuda.WaitWatch(self._waited)
        self._has_looked = False
        self._looking = 0  # steps

    def turn(self, *, full: bool) -> None:
        """A segment begins; `full`: every phase is marked in it."""
        self._waits.off()
        if not accelerator.is_in_use():
            return
        if self._marks.device is not None:
            self._marks.device.begin()
        else:
            self._marks.device = DeviceClock(functools.partial(accelerator.new_event, timed=True))
        if full and not self._has_looked and cuda.is_in_use():
            self._has_looked, self._looking = True, LOOK_STEPS
            self._waits.on()

    def step(self) -> None:
        """A step has ended. Each warning costs, so a few steps are looked at."""
        if self._looking:
            self._looking -= 1
            if not self._looking:
                self._waits.off()

    def off(self) -> None:
        """Leave everything as it was."""
        self._waits.off()

    def _waited(self) -> None:
        if self._marks.here() and not self._marks.reading:
            self._marks.add("sync", self._marks.now(), Sync(self._marks.place(2), "waiting for the GPU"))
