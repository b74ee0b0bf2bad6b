"""Which of the user's lines the training thread is on, asked a hundred times a second.

In: the training thread's frames. Out: seconds by (place, phase). Refuses to run while the time of record is taken.

Method: statistical sampling of one thread's stack from a second thread (as pyinstrument and py-spy do), each sample
weighed with the time since the one before.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter

from hasten.agent.frames import user_place
from hasten.raw_run import LineSeconds, Place, SampledPhase

PERIOD = 0.01


class LineSampler:
    """Samples one thread while `running`."""

    def __init__(
        self, thread: int, phase: Callable[[], SampledPhase], *, switch_interval: float | None = None
    ) -> None:
        """`switch_interval`: how long the interpreter lets the thread go on while the sampler waits, in seconds.

        With the usual 5 ms a thread that computes in Python alone for 4 ms is only ever met where it next gives the
        interpreter up, in somebody else's line.
        """
        self._switch_interval = switch_interval
        self._usual_interval: float | None = None
        self.seconds: dict[tuple[Place | None, SampledPhase], float] = defaultdict(float)
        self._thread = thread
        self._phase = phase
        self._run = threading.Event()
        self._ended = False
        self._watcher: threading.Thread | None = None

    def running(self, wanted: bool) -> None:
        """Start or pause sampling."""
        if wanted and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="hasten-lines", daemon=True)
            self._watcher.start()
        if wanted:
            self._run.set()
        else:
            self._run.clear()
        self._switch_often(wanted)

    def _switch_often(self, wanted: bool) -> None:
        if wanted and self._switch_interval is not None and self._usual_interval is None:
            self._usual_interval = sys.getswitchinterval()
            sys.setswitchinterval(self._switch_interval)
        elif not wanted and self._usual_interval is not None:
            sys.setswitchinterval(self._usual_interval)
            self._usual_interval = None

    def lines(self) -> list[LineSeconds]:
        """What was found so far."""
        return [LineSeconds(place, phase, seconds) for (place, phase), seconds in self.seconds.items()]

    def end(self) -> None:
        """End the sampling thread."""
        self._ended = True
        self._switch_often(False)
        self._run.set()
        if self._watcher is not None:
            self._watcher.join(timeout=1.0)

    def _watch(self) -> None:
        pause = threading.Event()
        last = None
        while True:
            if not self._run.is_set():
                last = None
                self._run.wait()
            if self._ended:
                return
            pause.wait(PERIOD)
            now = perf_counter()
            # Both are read under one hold of the interpreter lock, so they belong together.
            frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage]
            phase = self._phase()
            if frame is not None and last is not None and self._run.is_set():
                self.seconds[user_place(frame), phase] += now - last
            last = now
            del frame
