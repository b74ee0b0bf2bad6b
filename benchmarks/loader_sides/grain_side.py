"""Grain: threads (processes only where its reader is told so), with the lean parts; its batches never end."""

from __future__ import annotations

import itertools
import math

import grain.python as grain
import numpy as np
import torch
from grain.experimental import ThreadPrefetchIterDataset

from loader_sides.images import image_folder, lean_sample, scale
from loader_sides.job import Epoch, Job


def open_side(job: Job) -> Epoch:
    samples = image_folder(job).samples

    def pixels(sample: tuple[str, int]) -> tuple[np.ndarray, int]:
        small, label = lean_sample(sample, job.transform)
        return small.numpy(), label

    def floats(batch: tuple[np.ndarray, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        return scale(torch.from_numpy(batch[0])), torch.from_numpy(batch[1])

    order = grain.MapDataset.source(samples)
    order = order.shuffle(seed=0) if job.shuffle else order
    if job.compare_pixels:
        reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    else:
        reading = grain.ReadOptions(num_threads=job.workers, prefetch_buffer_size=2 * job.batch_size)
    batches = order.repeat().map(pixels).to_iter_dataset(reading).batch(job.batch_size).map(floats)
    running = iter(ThreadPrefetchIterDataset(batches, prefetch_buffer_size=2))
    return lambda: itertools.islice(running, math.ceil(len(samples) / job.batch_size))
