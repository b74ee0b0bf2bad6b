"""One quiet line at the bottom of the terminal while a run trains, and the same figures in the trackers it uses.

In: batches as they are asked for, steps as they end. Out: once a second a line below everything that the script prints, and
scalars in TensorBoard, W&B or MLflow where the script has them at work. Refuses to write anything where there is no
terminal, and to tear what the script writes: the line has a row of its own, outside the region in which text scrolls.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from hasten.agent.patches import Patches
from hasten.devices import accelerator
from hasten.measurement.inside.nests import tensors_in
from hasten.measurement.inside.trackers import Trackers

Function = Callable[..., object]
EVERY = 1.0  # seconds between two drawings
TRACKED_EVERY = 10.0  # seconds between two entries in a tracker
FEWEST_ROWS = 4  # of a terminal that has a row to spare


class Meter:
    """What a run does, since it was last asked."""

    def __init__(self, patches: Patches, *, baseline: float | None, on_step: Callable[[], object]) -> None:
        self.baseline = baseline  # samples a second without the plan
        self.epoch, self.num_steps = 1, 0
        self._on_step = on_step
        self._key: int | None = None
        self._thread = get_ident()
        self._begin(perf_counter())
        patches.wrap(_BaseDataLoaderIter, "__next__", self._timing)
        patches.on_undo(register_optimizer_step_post_hook(self._stepped).remove)

    def _begin(self, now: float) -> None:
        self._since, self._waited, self._samples, self._steps = now, 0.0, 0, 0

    def _timing(self, original: Function) -> Function:
        @functools.wraps(original)
        def __next__(self_: object) -> object:
            trains = torch.is_grad_enabled() and get_ident() == self._thread
            start = perf_counter()
            try:
                batch = original(self_)
            except StopIteration:
                self.epoch += trains
                raise
            if trains:
                self._waited += perf_counter() - start
                first = next((t for t in tensors_in(batch, most=8) if t.dim()), None)
                self._samples += len(first) if first is not None else 0
            return batch

        return __next__

    def _stepped(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        if self._key is None:
            self._key = id(optimizer)
        if id(optimizer) == self._key:
            self.num_steps += 1
            self._steps += 1
            self._on_step()

    def read(self) -> dict[str, float]:
        """The figures since the last reading, by name; one that cannot be told is not there."""
        now = perf_counter()
        taken = max(now - self._since, 1e-9)
        found = {"epoch": float(self.epoch), "step_seconds": taken / max(1, self._steps)}
        if self._samples:
            found["samples_per_second"] = self._samples / taken
            found["data_wait"] = self._waited / taken
            if self.baseline:
                found["times_baseline"] = found["samples_per_second"] / self.baseline
        if (resident := resident_bytes()) is not None:
            found["memory_bytes"] = float(resident)
        if accelerator.is_in_use():
            found["gpu_memory_bytes"] = float(accelerator.memory_in_use())
        self._begin(now)
        return found


def resident_bytes() -> int | None:
    """What this process holds in memory; None where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def told(figures: dict[str, float]) -> str:
    """The figures in one line."""
    words = [f"epoch {figures['epoch']:.0f}"]
    if "samples_per_second" in figures:
        words.append(f"{figures['samples_per_second']:,.4g} samples/s")
        if "times_baseline" in figures:
            words[-1] += f" ({figures['times_baseline']:.2f}x)"
        words.append(f"data wait {100 * figures['data_wait']:.0f} %")
    else:
        words.append(f"{1e3 * figures['step_seconds']:,.3g} ms a step")
    if "memory_bytes" in figures:
        words.append(f"memory {figures['memory_bytes'] / 2**30:.1f} GiB")
    if "gpu_memory_bytes" in figures:
        words.append(f"GPU memory {figures['gpu_memory_bytes'] / 2**30:.1f} GiB")
    return " | ".join(words)


class Row:
    """The terminal's last row, kept out of the region that scrolls. Everything is one write, which nothing cuts in two."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size: os.terminal_size | None = None

    def draw(self, text: str) -> None:
        """Show a line; nothing where the terminal is too low, or gone."""
        try:
            size = os.get_terminal_size(self._descriptor)
            if size.lines < FEWEST_ROWS:
                return
            begin = "" if size == self._size else f"\n\x1b7\x1b[1;{size.lines - 1}r\x1b8\x1b[1A"
            self._size = size
            shown = text[: size.columns - 1]
            os.write(self._descriptor, f"{begin}\x1b7\x1b[{size.lines};1H\x1b[2K{shown}\x1b8".encode())
        except OSError:
            self._size = None

    def clear(self) -> None:
        """Give the row back."""
        if self._size is not None:
            with_end = f"\x1b7\x1b[r\x1b[{self._size.lines};1H\x1b[2K\x1b8"
            self._size = None
            try:
                os.write(self._descriptor, with_end.encode())
            except OSError:
                return


class Live:
    """Draws and tracks while a run trains."""

    def __init__(self, patches: Patches, *, baseline: float | None) -> None:
        self._process = os.getpid()
        self._row = Row(sys.stderr.fileno()) if sys.stderr.isatty() else None
        self._trackers = Trackers(patches)
        self._drawn = self._tracked = perf_counter()
        self.meter = Meter(patches, baseline=baseline, on_step=self._step)
        atexit.register(self._end)
        patches.on_undo(self._end)

    def _step(self) -> None:
        now = perf_counter()
        if now - self._drawn < EVERY or os.getpid() != self._process:
            return
        figures = self.meter.read()
        self._drawn = now
        if self._row is not None:
            self._row.draw(told(figures))
        if now - self._tracked >= TRACKED_EVERY:
            self._tracked = now
            self._trackers.track(figures, step=self.meter.num_steps)

    def _end(self) -> None:
        if self._row is not None and os.getpid() == self._process:
            self._row.clear()
