"""What making a batch costs: measured in the loader's workers, or in the main process if there are none.

Each timed batch becomes a `StageLine` in the run's folder. Nothing that is fetched changes, and the dataset is never called
on hasten's account.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch as torch_fetch

from hasten.agent import libraries
from hasten.agent.frames import LineSampler, without_ours
from hasten.agent.instant import InstantSamples
from hasten.agent.stages import Function, Key, Totals, clock, run_delay
from hasten.agent.tree import num_samples, tensors_in
from hasten.patches import Patches, warn
from hasten.protocol import StageName, to_json
from hasten.raw_run import STAGES, StageLine, StageSeconds

LEAST_BATCHES = 8  # of a process, timed whatever they cost
MOST_APART = 32  # batches from one that is timed to the next
TIMING_A_SAMPLE = 7e-6  # seconds that timing adds to a sample that comes out of memory
TIMING_SHARE = 0.01  # of the loader's work that timing may take
MOST_SAMPLES = 64  # sample times kept of a batch
_serving: tuple[int | None, bool] = (None, False)


def serve(loader: int | None, *, timed: bool) -> None:
    """Tell which loader the main process fetches for, and whether to time it."""
    global _serving
    _serving = (loader, timed)


def install(folder: Path, patches: Patches, *, instant: InstantSamples | None = None) -> None:
    """Time what torch's fetchers do from now on, in this process and in those forked from it."""
    recorder = _Recorder(folder, instant)
    patches.on_undo(recorder.close)
    for kind in (torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher):  # pyright: ignore[reportPrivateUsage]
        patches.wrap(kind, "fetch", functools.partial(_timed_fetch, recorder))
    libraries.install(patches)
    patches.after_import("hasten.data.workers.builder", lambda module: _time_tasks(recorder, patches, module))
    patches.wrap(ExceptionWrapper, "__init__", _telling_only_theirs)


def _telling_only_theirs(original: Function) -> Function:
    """A worker's exception reaches the main process as text: our frames are taken out before."""

    @functools.wraps(original)
    def start(self: object, exc_info: tuple[object, ...] | None = None, where: str = "in background") -> None:
        kind, error, trace = exc_info or sys.exc_info()
        original(self, (kind, error, without_ours(trace)), where)  # type: ignore[arg-type]

    return start


def _timed_fetch(recorder: _Recorder, original: Function) -> Function:
    @functools.wraps(original)
    def fetch(self: object, index: object) -> object:
        working = get_worker_info() is not None
        if clock.thread is not None or not (working or _serving[1]):
            return original(self, index)
        held = recorder.instant.batch() if recorder.instant is not None else None
        if held is not None:
            return held
        if recorder.wanted():
            batch = recorder.fetch(self, original, index)
        else:
            batch = recorder.pass_by(self, original, index) if working else original(self, index)
        if recorder.instant is not None and working:
            recorder.instant.hold(batch)
        return batch

    return fetch


def _time_tasks(recorder: _Recorder, patches: Patches, module: Any) -> None:
    """Record when each task of hasten's own loader was worked on: for lanes, not for costs."""

    def timing(original: Function) -> Function:
        @functools.wraps(original)
        def result(builder: object, task: object) -> object:
            start = perf_counter()
            found: Any = original(builder, task)
            try:
                recorder.task(start, perf_counter(), found)
            except Exception as error:
                warn(f"a worker's times are lost ({error!r})")
            return found

        return result

    patches.wrap(module.SampleBuilder, "result", timing)


class _Recorder:
    """Times batches in one process and writes their lines."""

    def __init__(self, folder: Path, instant: InstantSamples | None) -> None:
        self.instant = instant
        self._folder = folder
        self._pid = 0
        self._file = -1
        self._count = 0
        self._sample_cost = 0.0  # mean seconds of a sample, in the batch before
        self._samples: list[float] = []
        self._sample_bytes = 0
        self._lengths: list[float] = []  # seconds of the batches since the last line
        self._held: dict[int, int] = {}
        self._lines: LineSampler | None = None

    def wanted(self) -> bool:
        """Whether to time the next batch. Cheap samples are timed in few batches, for timing costs microseconds."""
        if self._pid != os.getpid():
            self._start_in_this_process()
        self._count += 1
        every = min(MOST_APART, 1 + int(TIMING_A_SAMPLE / max(1e-9, TIMING_SHARE * self._sample_cost)))
        return self._count <= LEAST_BATCHES or self._count % every == 0

    def pass_by(self, fetcher: object, original: Function, index: object) -> object:
        """Fetch a batch of which only the length is timed: one slow batch of many matters."""
        start = perf_counter()
        batch = original(fetcher, index)
        self._lengths.append(perf_counter() - start)
        return batch

    def _start_in_this_process(self) -> None:
        # A forked worker starts over: the parent's file and thread are not its own.
        self._pid, self._file, self._count, self._lines = os.getpid(), -1, 0, None

    def fetch(self, fetcher: object, original: Function, index: object) -> object:
        """Fetch a batch with its stages timed."""
        self._samples, self._sample_bytes = [], 0
        lines = self._line_sampler()
        delay = run_delay()
        start = perf_counter()
        clock.begin()
        try:
            if lines is not None:
                lines.running(True)
            with self._watching(fetcher):
                clock.push("getitem")
                try:
                    batch = original(fetcher, index)
                finally:
                    clock.pop(("getitem", ""))
        finally:
            totals = clock.end()
            if lines is not None:
                lines.running(False)
        end = perf_counter()
        try:
            waited = run_delay()
            delay = waited - delay if waited is not None and delay is not None else None
            self._write(fetcher, (start, end, delay), totals, batch)
        except Exception as error:
            warn(f"a worker's times are lost ({error!r})")
        return batch

    @contextlib.contextmanager
    def _watching(self, fetcher: object) -> Generator[None]:
        space = fetcher.__dict__
        before = {name: space[name] for name in ("dataset", "dataset_iter", "collate_fn") if name in space}
        collate = before["collate_fn"]
        space["collate_fn"] = clock.timed(collate, "collate", "")
        if "dataset_iter" in before:
            space["dataset_iter"] = _WatchedStream(before["dataset_iter"], self)
        else:
            whole = getattr(before["dataset"], "__getitems__", None)
            space["dataset"] = (_WatchedWhole if whole else _Watched)(before["dataset"], self)
        try:
            yield
        finally:
            space.update(before)

    def sample(self, seconds: float, sample: object) -> None:
        """Note one sample's time, and the size of the batch's first."""
        if not self._samples:
            # Not `nbytes`, which a sparse tensor does not have.
            self._sample_bytes = sum(t.numel() * t.element_size() for t in tensors_in(sample, most=8))
        self._samples.append(seconds)

    def _line_sampler(self) -> LineSampler | None:
        # In the main process the session's own sampler sees these lines already.
        if get_worker_info() is None:
            return None
        if self._lines is None:
            self._lines = LineSampler(get_ident(), lambda: "data_wait")
        return self._lines

    def _write(
        self,
        fetcher: object,
        times: tuple[float, float, float | None],
        totals: dict[Key, Totals],
        batch: object,
    ) -> None:
        start, end, delay = times
        samples = self._samples
        number = len(samples) or num_samples(batch) or 1
        self._sample_cost = (end - start) / max(1, number)
        line = StageLine(
            pid=self._pid,
            start=start,
            end=end,
            stages=[StageSeconds(*key, t.calls, t.seconds, t.cpu, t.num_bytes) for key, t in totals.items()],
            loader=_serving[0],
            delay=delay,
            num_samples=number,
            batch_seconds=[*(round(length, 7) for length in self._lengths), end - start],
            sample_seconds=[round(s, 7) for s in samples[:: max(1, len(samples) // MOST_SAMPLES)]][:MOST_SAMPLES],
            held_bytes=self._held_bytes(fetcher),
            sample_bytes=self._sample_bytes,
            files=libraries.take_files(),
        )
        self._lengths.clear()
        if self._lines is not None:
            line.lines = self._lines.lines()
            self._lines.seconds.clear()
        self._tell(line)

    def task(self, start: float, end: float, result: Any) -> None:
        """Note what one task of hasten's own loader took."""
        if self._pid != os.getpid():
            self._start_in_this_process()
        taken: dict[StageName, float] = {"getitem": result.sample_seconds, "collate": result.collate_seconds}
        stages = [StageSeconds(name, "", 1, seconds, 0.0, 0) for name, seconds in taken.items() if seconds]
        self._tell(StageLine(pid=self._pid, start=start, end=end, stages=stages, is_task=True))

    def _tell(self, line: StageLine) -> None:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(self._folder / STAGES.format(self._pid), flags, 0o644)
        os.write(self._file, (to_json(line) + "\n").encode())

    def close(self) -> None:
        """Close the file; what comes later opens it again."""
        if self._file >= 0 and self._pid == os.getpid():
            os.close(self._file)
            self._file = -1

    def _held_bytes(self, fetcher: object) -> int:
        """Bytes of the tensors and arrays that the dataset itself holds."""
        dataset = getattr(fetcher, "dataset", None)
        known = self._held.get(id(dataset))
        if known is None:
            known = self._held[id(dataset)] = held_bytes(dataset)
        return known


def held_bytes(dataset: object, *, depth: int = 4) -> int:
    """Bytes of tensors and arrays in a dataset's attributes, and in those of the datasets it wraps."""
    total = 0
    for value in list(getattr(dataset, "__dict__", {}).values()):
        items = value if isinstance(value, (list, tuple)) and len(value) <= 16 else (value,)
        for item in items:
            if isinstance(item, torch.Tensor) or type(item).__module__ == "numpy":
                total += int(getattr(item, "nbytes", 0))
            elif depth and isinstance(item, torch.utils.data.Dataset):
                total += held_bytes(item, depth=depth - 1)
        if isinstance(value, list) and len(value) > 16:
            first = value[0]
            if isinstance(first, torch.Tensor) or type(first).__module__ == "numpy":
                total += len(value) * int(getattr(first, "nbytes", 0))
    return total


class _Watched:
    """A dataset seen through a stopwatch, for the length of one fetch."""

    def __init__(self, dataset: object, recorder: _Recorder) -> None:
        self._dataset = dataset
        self._recorder = recorder

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_dataset"], name)

    def __getitem__(self, index: object) -> object:
        start = perf_counter()
        sample = self._dataset[index]  # type: ignore[index]
        self._recorder.sample(perf_counter() - start, sample)
        return sample


class _WatchedWhole(_Watched):
    """The same for a dataset that hands out whole batches."""

    def __getitems__(self, indices: object) -> object:
        start = perf_counter()
        samples = self._dataset.__getitems__(indices)  # type: ignore[attr-defined]
        seconds = perf_counter() - start
        if isinstance(samples, list):
            for sample in samples:
                self._recorder.sample(seconds / len(samples), sample)
        return samples


class _WatchedStream:
    """An iterable dataset's iterator seen through a stopwatch, for the length of one fetch."""

    def __init__(self, stream: Iterator[object], recorder: _Recorder) -> None:
        self._stream = stream
        self._recorder = recorder

    def __iter__(self) -> _WatchedStream:
        return self

    def __next__(self) -> object:
        start = perf_counter()
        sample = next(self._stream)
        self._recorder.sample(perf_counter() - start, sample)
        return sample
