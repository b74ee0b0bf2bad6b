"""A loader's options, the state it carries from one epoch to the next, and the start of its workers."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, Subset, default_collate, default_convert

from hasten.data.epoch.columns import Columns
from hasten.data.epoch.device_tier import DeviceTier, tier_for
from hasten.data.epoch.resume import Position
from hasten.data.epoch.staffing import MAX_PER_CORE, usable_cores
from hasten.data.epoch.stats import Counts
from hasten.data.images.pixels import PixelRule
from hasten.data.layout.arena import Arena
from hasten.data.layout.slots import Slots
from hasten.data.layout.tree import Layout
from hasten.data.memo.budget import Forecast, available_memory
from hasten.data.memo.folders import FolderSamples, folder_samples, is_threadable
from hasten.data.memo.memo import Memo, MemoCounts, current, key_of_host, open_memo
from hasten.data.memo.remote import RemoteCounts
from hasten.data.workers.pool import InlinePool, WorkerPool
from hasten.data.workers.processes import ProcessPool
from hasten.data.workers.ray_checks import ClusterReport
from hasten.data.workers.ray_pool import RayPool
from hasten.data.workers.tasks import WorkerConfig
from hasten.data.workers.threads import ThreadPool, has_gil
from hasten.devices import cuda


@dataclass(frozen=True)
class LoaderOptions:
    """The validated options of a Loader."""

    device: torch.device | None
    """None: batches stay in host memory."""
    cache: int | str | None
    disk_cache: int | str | None
    pixels: PixelRule
    workers: Literal["auto", "processes", "threads", "ray"]
    on_error: Literal["raise", "replace"]
    max_error_rate: float
    adjusts_workers: bool
    """The number of workers and of prefetched batches is adjusted during the epoch."""

    @property
    def caches(self) -> bool:
        """Whether anything is to be cached."""
        return self.cache is not None or self.disk_cache is not None


SLOTS_SHARE = 0.25  # of the memory available when a loader starts
FORECAST_SAMPLES = 16  # samples built before a full cache's size is predicted

log = logging.getLogger("hasten")


@dataclass
class LoaderState:
    """The state of one loader in one process."""

    counts: Counts = field(default_factory=Counts)
    position: Position | None = None
    """Position in the current epoch; None when it is over."""
    resumed: Position | None = None
    """Position at which the next epoch starts, if not at its beginning."""
    on_device: Columns | None = None
    """In-memory data, copied to the device."""
    slots: Slots | None = None
    layout: Layout | None = None
    """The layout of the last epoch's samples."""
    folders: FolderSamples | None = None
    uses_threads: bool | None = None
    memo: Memo | None = None
    tier: DeviceTier | None = None
    """The folders' images on the device."""
    forecast: Forecast | None = None
    cluster: ClusterReport | None = None
    """What the workers on a Ray cluster found before they started."""
    _before: MemoCounts | None = None
    """The memo's counts before this loader used it."""
    _remote_before: RemoteCounts | None = None
    """The counts of remote objects when the last epoch began."""
    owner: int = field(default_factory=os.getpid)

    def take_resumed(self) -> Position | None:
        """Return where the next epoch starts, and forget it."""
        resumed, self.resumed = self.resumed, None
        return resumed

    def prepare(self, loader: DataLoader[Any], options: LoaderOptions) -> Slots:
        """Prepare an epoch: the current folders, the kind of workers, slots, and a memo."""
        builds_samples = makes_samples(loader)
        if self.folders is None or self.folders.dataset is not loader.dataset:
            self.folders = folder_samples(loader.dataset, pixels=options.pixels) if builds_samples else None
            self.uses_threads = None
        if self.uses_threads is None:
            self.uses_threads = self._should_use_threads(loader, options)
        in_processes = bool(loader.num_workers) and not self.uses_threads and options.workers != "ray"
        if self.slots is None or self.slots.arena.is_shared != in_processes:
            self.slots = _new_slots(options, is_shared=in_processes)
        if options.caches and self.memo is None:
            self.memo = memo_for(loader.dataset, options)
            self._before = self.memo.counts()
        self.tier = None
        if self.memo is not None and options.device is not None and options.cache is not None and makes_rows(loader):
            self.tier = None if self.folders is None else tier_for(self.memo, options.device)
        return self.slots

    def cache_counts(self) -> MemoCounts | None:
        """Return the cache's counts, on the device and on the host; None without a cache."""
        counts = None if self.memo is None else self.memo.counts()
        return counts if counts is None or self.tier is None else self.tier.add_counts_to(counts)

    def reads_ahead(self, num_samples: float) -> bool:
        """Return whether coming remote objects are fetched: no longer once an epoch has found all of them on the disk."""
        memo = self.memo or current()
        if memo is None or memo.remote is None or "fsspec" not in sys.modules:
            return False
        before, now = self._remote_before, memo.remote.counts()
        self._remote_before = now
        if before is None or now.num_hits - before.num_hits < num_samples:
            return True
        return now.num_downloads > before.num_downloads or now.num_direct > before.num_direct

    def start_pool(
        self, loader: DataLoader[Any], options: LoaderOptions, base_seed: int, *, reads_ahead: bool
    ) -> tuple[WorkerConfig, WorkerPool]:
        """Start the workers of one iterator; return their configuration and the pool."""
        assert self.slots is not None
        config = WorkerConfig(
            dataset=loader.dataset,
            folders=self.folders,
            collate=loader.collate_fn,
            fetches_batches=not makes_samples(loader),
            batched=loader.batch_sampler is not None,
            late_floats=options.device is not None,
            on_error=options.on_error,
            base_seed=base_seed,
            num_workers=loader.num_workers,
            max_workers=MAX_PER_CORE * usable_cores() if options.adjusts_workers else loader.num_workers,
            init=loader.worker_init_fn,
            memo=self.memo,
            reads_ahead=reads_ahead,
        )
        if options.workers == "ray":
            number = None if options.adjusts_workers else loader.num_workers
            return config, RayPool(config, self.slots.arena, number=number, report=self._report_cluster)
        if not loader.num_workers:
            return config, InlinePool(config, self.slots.arena)
        if self.uses_threads:
            return config, ThreadPool(config, self.slots.arena)
        return config, ProcessPool(config, self.slots, context=loader.multiprocessing_context)

    def make_forecast(self, num_samples: int) -> None:
        """Predict from the first samples how much a full cache will hold, and log it."""
        if (
            self.memo is None
            or self._before is None
            or self.forecast is not None
            or self.counts.num_built < FORECAST_SAMPLES
        ):
            return
        now, before = self.memo.counts(), self._before
        self._before = None
        if now.num_misses == before.num_misses:
            is_remote = now.remote is not None and now.remote.num_hits > 0
            if now.num_hits == before.num_hits and not is_remote and (self.tier is None or self.tier.is_empty):
                log.warning(
                    "nothing is cached: these samples are not read through any library call that hasten can cache, or "
                    "from files that changed in the last seconds; "
                    "mark functions of your own with @hasten.pure"
                )
            return
        factor = num_samples / self.counts.num_built
        full, sources = now.value_bytes - before.value_bytes, now.source_bytes - before.source_bytes
        self.forecast = Forecast(
            num_samples=num_samples,
            full_bytes=full * factor,
            expansion=full / sources if sources else None,
            tiers=tuple((tier.name, tier.budget) for tier in now.tiers),
            seconds_per_sample=(now.seconds_computing - before.seconds_computing) / self.counts.num_built,
        )
        log.info(self.forecast.line())

    def _report_cluster(self, report: ClusterReport) -> None:
        self.cluster = report
        log.warning(report.line())  # at a level that is shown by default

    def _should_use_threads(self, loader: DataLoader[Any], options: LoaderOptions) -> bool:
        if options.workers != "auto" or not loader.num_workers:
            return options.workers == "threads"
        asks_for_processes = loader.worker_init_fn is not None or loader.multiprocessing_context is not None
        folders = self.folders
        if asks_for_processes or folders is None or loader.collate_fn not in (default_collate, default_convert):
            return False
        return is_threadable(loader.dataset) and not has_gil()


_memos: dict[int, list[tuple[tuple[object, ...], Memo]]] = {}  # by the dataset's id, as datasets may not be hashable


def memo_for(dataset: Any, options: LoaderOptions) -> Memo:
    """Return the memo of a dataset's loaders, for the dataset's lifetime: many scripts recreate the loader every epoch."""
    asked = options.cache, options.disk_cache
    known = _memos.get(id(dataset), [])
    found = next((memo for other, memo in known if other == asked), None)
    if found is not None:
        return found
    memo = open_memo(ram=options.cache, disk=options.disk_cache, host_key=key_of_host())
    if id(dataset) not in _memos:
        try:
            weakref.finalize(dataset, _memos.pop, id(dataset), None).atexit = False
        except TypeError:  # it does not support weak references, so its end cannot be noticed
            return memo
        _memos[id(dataset)] = []
    _memos[id(dataset)].append((asked, memo))
    return memo


def _new_slots(options: LoaderOptions, *, is_shared: bool) -> Slots:
    # Without `device`, the end of the script's own copies is unknown: torch then copies to pinned memory that it tracks.
    pins = options.device is not None and cuda.is_available()
    return Slots(
        Arena(int(available_memory() * SLOTS_SHARE), is_shared=is_shared),
        pin=cuda.pin if pins else None,
    )


def makes_samples(loader: DataLoader[Any]) -> bool:
    """Whether samples are built one by one, and not as whole batches by the dataset."""
    dataset: Any = loader.dataset
    while type(dataset) is Subset:  # it calls its dataset's method, and falls back to single samples without one
        dataset = dataset.dataset
    return loader.batch_sampler is None or not getattr(dataset, "__getitems__", None)


def makes_rows(loader: DataLoader[Any]) -> bool:
    """Whether samples are written to a batch's rows one by one: no user code builds the batch as a whole."""
    return loader.batch_sampler is not None and loader.collate_fn is default_collate and makes_samples(loader)
