"""The process of one run: opens a side, times whole epochs of it, writes what it found as JSON.

    python -m loader_sides.one_run JOB_AS_JSON RESULT_FILE

The first epoch is not in the window: it holds the start, and the filling of caches. The consumer reads one number of
each batch, so the rates are what the loader alone can do.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from loader_sides.job import Epoch, Job
from loader_sides.process_tree import cpu_seconds, written_bytes


def consume(batches: Iterable[tuple[Any, Any]]) -> int:
    """Touch every batch; the number of samples."""
    num_samples = 0
    for inputs, labels in batches:
        float(inputs[(0,) * inputs.ndim])
        int(labels[0])
        num_samples += len(labels)
    return num_samples


def time_epochs(job: Job, epoch: Epoch, opened: float) -> dict[str, float]:
    """Start-up, the first epoch, and the window. Seconds."""
    batches = iter(epoch())
    inputs, labels = next(batches)
    float(inputs[(0,) * inputs.ndim])
    first_batch = time.perf_counter() - opened
    shape, dtype = list(inputs.shape), str(inputs.dtype)
    num_first = len(labels) + consume(batches)
    del batches, inputs, labels
    first_epoch = time.perf_counter() - opened
    num_samples = num_epochs = 0
    written, cpu, start = written_bytes(), cpu_seconds(), time.perf_counter()
    while num_epochs == 0 or time.perf_counter() - start < job.seconds:
        num_samples += consume(epoch())
        num_epochs += 1
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    return {
        "first_batch_seconds": first_batch,
        "first_epoch_seconds": first_epoch,
        "first_epoch_samples": num_first,
        "samples": num_samples,
        "epochs": num_epochs,
        "seconds": wall,
        "cpu_seconds": cpu,
        "written_bytes": written_bytes() - written,
        "batch": f"{dtype} {shape}",
    }


def compare_pixels(job: Job, epoch: Epoch) -> dict[str, float | int | str]:
    """Of the second epoch's images, for then a cache has its say."""
    from loader_sides.images import pixel_errors

    num_before = consume(epoch())  # more than there are samples, where batches cross epochs
    return pixel_errors(epoch(), job, num_before=num_before)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    side = importlib.import_module(f"loader_sides.{job.module}")
    opened = time.perf_counter()
    epoch = side.open_side(job)
    result = compare_pixels(job, epoch) if job.compare_pixels else time_epochs(job, epoch, opened)
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
