"""Counters of a loader, and the statistics it reports."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from hasten.data.epoch.pending import PendingBatch
from hasten.data.memo.memo import MemoCounts
from hasten.data.workers.ray_checks import ClusterReport
from hasten.data.workers.tasks import Result
from hasten.errors import SampleRateError

FEWEST_REPLACED = 10  # replaced samples before their rate is compared with the limit


@dataclass(frozen=True)
class LoaderStats:
    """Statistics of a Loader since it was created. Seconds are wall time, summed over workers."""

    num_batches: int
    num_samples: int
    sample_seconds: float
    """Building samples: `dataset[index]`."""
    collate_seconds: float
    """Writing samples to their rows, or running collate_fn."""
    cpu_seconds: float
    """CPU time of both."""
    wait_seconds: float
    """How long the training loop waited in `next()`."""
    mean_ready: float
    """Mean number of batches that were ready when one was requested."""
    cache: MemoCounts | None
    """Hits, misses and bytes of each tier; None if nothing is cached."""
    num_replaced: int
    """Samples that were replaced by another."""
    num_workers: int
    cluster: ClusterReport | None = None
    """With workers="ray": hosts, bytes per sample, and the most samples per second that the network carries."""


@dataclass
class Counts:
    """Running counters for LoaderStats."""

    num_batches: int = 0
    num_samples: int = 0
    num_built: int = 0
    sample_seconds: float = 0.0
    collate_seconds: float = 0.0
    cpu_seconds: float = 0.0
    wait_seconds: float = 0.0
    num_ready: int = 0
    num_replaced: int = 0

    @property
    def worked_seconds(self) -> float:
        """Wall seconds spent in all stages."""
        return self.sample_seconds + self.collate_seconds

    def count_result(self, result: Result) -> None:
        """Count a result."""
        self.num_built += result.count
        self.sample_seconds += result.sample_seconds
        self.collate_seconds += result.collate_seconds
        self.cpu_seconds += result.cpu_seconds

    def count_batch(self, num_samples: int, *, waited: float, ready: int) -> None:
        """Count a batch: its samples, the seconds it was waited for, and the batches that were ready."""
        self.num_batches += 1
        self.num_samples += num_samples
        self.wait_seconds += waited
        self.num_ready += ready

    def count_replaced(self, pending: PendingBatch, *, most: float) -> None:
        """Count the replaced samples of a batch. Raises SampleRateError if there are too many."""
        if not self.num_replaced:
            first = pending.replaced[0]
            warnings.warn(
                f"sample {first.index!r} could not be built and is replaced by another: {first.error}; "
                "loader.stats().num_replaced counts them from here on",
                stacklevel=2,
            )
        self.num_replaced += len(pending.replaced)
        if self.num_replaced < FEWEST_REPLACED or self.num_replaced <= most * self.num_built:
            return
        last = pending.replaced[-1]
        raise SampleRateError(
            f"{self.num_replaced} of {self.num_built} samples could not be built, more than max_error_rate={most:g} "
            f"allows; the last was sample {last.index!r}: {last.error}"
        )

    def stats(self, *, num_workers: int, cache: MemoCounts | None, cluster: ClusterReport | None) -> LoaderStats:
        """Return the current statistics."""
        return LoaderStats(
            num_batches=self.num_batches,
            num_samples=self.num_samples,
            sample_seconds=self.sample_seconds,
            collate_seconds=self.collate_seconds,
            cpu_seconds=self.cpu_seconds,
            wait_seconds=self.wait_seconds,
            mean_ready=self.num_ready / max(1, self.num_batches),
            cache=cache,
            num_replaced=self.num_replaced,
            num_workers=num_workers if cluster is None else cluster.num_workers,
            cluster=cluster,
        )
