"""SPDL: threads, with the lean parts, for its own decoder (spdl.io) needs FFmpeg's libraries on the system."""

from __future__ import annotations

import random
from collections.abc import Iterator

from spdl.pipeline import PipelineBuilder

from loader_sides.images import image_folder, lean_collate, lean_sample
from loader_sides.job import Epoch, Job


class Order:
    """The samples, in a new order each time."""

    def __init__(self, samples: list[tuple[str, int]], *, shuffle: bool) -> None:
        self.samples, self.shuffle = samples, shuffle

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(random.sample(self.samples, len(self.samples)) if self.shuffle else self.samples)


def open_side(job: Job) -> Epoch:
    order = Order(image_folder(job).samples, shuffle=job.shuffle)
    pipeline = (
        PipelineBuilder()
        .add_source(order, continuous=True)
        .pipe(
            lambda sample: lean_sample(sample, job.transform),
            concurrency=job.workers,
            output_order="completion" if job.shuffle else "input",
        )
        .aggregate(job.batch_size)
        .pipe(lean_collate)
        .add_sink(2)
        .build(num_threads=job.workers + 1)
    )
    pipeline.start()
    return lambda: pipeline.get_iterator(timeout=60)
